// Drives sarama for the client matrix.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"ottla/clients/matrix"
)

const (
	sessionTimeout    = 6 * time.Second
	heartbeatInterval = time.Second
	retries           = 100
	retryPause        = 100 * time.Millisecond
	adminTimeout      = 60 * time.Second
	recordsPerCommit  = 100
)

func main() {
	sarama.Logger = log.New(os.Stderr, "sarama: ", log.Ltime)
	matrix.Main(map[string]func(*matrix.Request) error{
		"produce":  produce,
		"write":    write,
		"consume":  consume,
		"group":    group,
		"transact": transact,
		"pipeline": pipeline,
		"admin":    admin,
		"login":    login,
		"denied":   denied,
	})
}

func brokers(request *matrix.Request) []string { return strings.Split(request.Bootstrap, ",") }

func newConfig(request *matrix.Request) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.Retry.Max = retries
	config.Metadata.Retry.Backoff = retryPause
	config.Producer.Retry.Max = retries
	config.Producer.Retry.Backoff = retryPause
	config.Producer.Return.Successes = true
	config.Producer.Transaction.Retry.Max = retries
	config.Producer.Transaction.Retry.Backoff = retryPause
	config.Consumer.Retry.Backoff = retryPause
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Session.Timeout = sessionTimeout
	config.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	return config, secure(config, request.Security)
}

// secure sets how the client logs in.
func secure(config *sarama.Config, security *matrix.Security) error {
	if security == nil {
		return nil
	}
	encrypted, err := security.TLS()
	config.Net.TLS.Enable, config.Net.TLS.Config = true, encrypted
	if security.Mechanism == "" {
		return err
	}
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLMechanism(security.Mechanism)
	config.Net.SASL.User, config.Net.SASL.Password = security.User, security.Password
	hashes := map[string]scram.HashGeneratorFcn{"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512}
	if hash, isScram := hashes[security.Mechanism]; isScram {
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: hash} }
	} else if security.Mechanism == sarama.SASLTypeOAuth {
		config.Net.SASL.TokenProvider = provider{security}
	} else if security.Mechanism != sarama.SASLTypePlaintext {
		return matrix.Unsupported("without " + security.Mechanism)
	}
	return err
}

// provider gives sarama a token for each login.
type provider struct{ security *matrix.Security }

func (p provider) Token() (*sarama.AccessToken, error) {
	token, err := p.security.ReadToken()
	return &sarama.AccessToken{Token: token}, err
}

// conversation is one login by SCRAM. sarama leaves it to the package scram.
type conversation struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (c *conversation) Begin(user, password, authorized string) error {
	client, err := c.hash.NewClient(user, password, authorized)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

// makeIdempotent sets what sarama wants of an idempotent producer.
func makeIdempotent(config *sarama.Config) {
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
}

// send produces the messages in order, and prints each acknowledgement.
func send(producer sarama.AsyncProducer, messages []*sarama.ProducerMessage, pause func()) error {
	go func() {
		for index, message := range messages {
			if index > 0 {
				pause()
			}
			producer.Input() <- message
		}
	}()
	var failed error
	for range messages {
		select {
		case message := <-producer.Successes():
			value, _ := message.Value.Encode()
			matrix.Acked(value, message.Partition, message.Offset)
		case problem := <-producer.Errors():
			failed = errors.Join(failed, problem)
		}
	}
	return failed
}

// newProducer is for all verbs that write without transactions; the config says the rest.
func newProducer(request *matrix.Request, config *sarama.Config) (sarama.AsyncProducer, error) {
	config.Net.MaxOpenRequests = 1 // so that a retry keeps the order
	if request.Idempotent {
		makeIdempotent(config)
	}
	return sarama.NewAsyncProducer(brokers(request), config)
}

func produce(request *matrix.Request) error {
	codecs := map[string]sarama.CompressionCodec{
		"none":   sarama.CompressionNone,
		"gzip":   sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy,
		"lz4":    sarama.CompressionLZ4,
		"zstd":   sarama.CompressionZSTD,
	}
	acks := map[string]sarama.RequiredAcks{"all": sarama.WaitForAll, "1": sarama.WaitForLocal, "0": sarama.NoResponse}
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	config.Producer.Compression = codecs[request.Compression]
	config.Producer.RequiredAcks = acks[request.Acks]
	producer, err := newProducer(request, config)
	if err != nil {
		return err
	}
	messages := make([]*sarama.ProducerMessage, len(request.Values))
	for index, value := range request.Values {
		messages[index] = &sarama.ProducerMessage{Topic: request.Topic, Value: sarama.StringEncoder(value)}
		if key := request.Key(index); key != nil {
			messages[index].Key = sarama.ByteEncoder(key)
		}
	}
	return errors.Join(send(producer, messages, request.Pause), producer.Close())
}

func write(request *matrix.Request) error {
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	config.Producer.RequiredAcks = sarama.WaitForAll
	producer, err := newProducer(request, config)
	if err != nil {
		return err
	}
	read := make(chan error, 1)
	go func() {
		read <- matrix.EachLine(func(value []byte) {
			producer.Input() <- &sarama.ProducerMessage{Topic: request.Topic, Value: sarama.ByteEncoder(value)}
		})
		producer.AsyncClose()
	}()
	failing := make(chan struct{})
	go func() {
		for problem := range producer.Errors() {
			value, _ := problem.Msg.Value.Encode()
			matrix.Failed(value, problem.Err)
		}
		close(failing)
	}()
	for message := range producer.Successes() {
		value, _ := message.Value.Encode()
		matrix.Acked(value, message.Partition, message.Offset)
	}
	<-failing
	return <-read
}

func consume(request *matrix.Request) error {
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	if request.Isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	client, err := sarama.NewClient(brokers(request), config)
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	defer consumer.Close()
	offset := sarama.OffsetOldest
	switch {
	case request.From.Offset != nil:
		offset = *request.From.Offset
	case request.From.TimestampMs != nil:
		if offset, err = client.GetOffset(request.Topic, *request.Partition, *request.From.TimestampMs); err != nil {
			return err
		}
	case request.From.Name == "latest":
		offset = sarama.OffsetNewest
	}
	partition, err := consumer.ConsumePartition(request.Topic, *request.Partition, offset) // asks for the real offset
	if err != nil {
		return err
	}
	defer partition.AsyncClose()
	matrix.Print(matrix.Line{"ready": true})
	for count := 0; count < request.Count; {
		select {
		case message := <-partition.Messages():
			count++
			matrix.Consumed(message.Key, message.Value, message.Partition, message.Offset, message.Timestamp)
		case problem := <-partition.Errors(): // the consumer goes on by itself
			fmt.Fprintln(os.Stderr, problem)
		}
	}
	return nil
}

// handle is a member of a group. `work` gets records of one partition.
type handle struct {
	topic      string
	assignment *matrix.Assignment
	work       func(session sarama.ConsumerGroupSession, messages []*sarama.ConsumerMessage) error
}

func (h *handle) Setup(session sarama.ConsumerGroupSession) error {
	if h.assignment != nil {
		h.assignment.Change(session.Claims()[h.topic], nil)
	}
	return nil
}

func (h *handle) Cleanup(session sarama.ConsumerGroupSession) error {
	if h.assignment != nil {
		h.assignment.Change(nil, session.Claims()[h.topic])
	}
	return nil
}

// ConsumeClaim ends when the group rebalances. An error ends the session: the next one starts at the committed offsets.
func (h *handle) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		var messages []*sarama.ConsumerMessage
		select {
		case <-session.Context().Done():
			return nil
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			messages = append(messages, message)
		}
		for isMore := true; isMore && len(messages) < recordsPerCommit; {
			select {
			case message, isOpen := <-claim.Messages():
				if isMore = isOpen; isOpen {
					messages = append(messages, message)
				}
			default:
				isMore = false
			}
		}
		if err := h.work(session, messages); err != nil {
			return err
		}
	}
}

// run is a member until stdin closes.
func (h *handle) run(group sarama.ConsumerGroup) error {
	go func() {
		for problem := range group.Errors() {
			fmt.Fprintln(os.Stderr, problem)
		}
	}()
	ctx := matrix.UntilStdinCloses()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{h.topic}, h); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(retryPause)
		}
	}
	return leave(group)
}

// leave closes the member. sarama tries once to leave, and the coordinator may be the broker that was killed: the group then notices at the
// end of the session, so only an error that a broker answered is one.
func leave(group sarama.ConsumerGroup) error {
	err := group.Close()
	var answered sarama.KError
	if err == nil || errors.As(err, &answered) {
		return err
	}
	fmt.Fprintln(os.Stderr, "not left:", err)
	return nil
}

func group(request *matrix.Request) error {
	if request.Protocol != "" {
		return matrix.Unsupported("sarama has no groups of the new kind")
	}
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	client, err := sarama.NewClient(brokers(request), config)
	if err != nil {
		return err
	}
	defer client.Close()
	offsets, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerGroupFromClient(request.Group, client)
	if err != nil {
		return err
	}
	member := &handle{topic: request.Topic, assignment: &matrix.Assignment{}}
	member.work = func(session sarama.ConsumerGroupSession, messages []*sarama.ConsumerMessage) error {
		for _, message := range messages {
			matrix.Print(matrix.Line{
				"value": string(message.Value), "partition": message.Partition, "offset": message.Offset,
			})
		}
		last := messages[len(messages)-1]
		session.MarkMessage(last, "")
		session.Commit()
		// Commit does not say whether it worked, so the group is asked.
		answer, err := offsets.ListConsumerGroupOffsets(request.Group, map[string][]int32{request.Topic: {last.Partition}})
		if err != nil {
			return err
		}
		if block := answer.GetBlock(request.Topic, last.Partition); block == nil || block.Offset != last.Offset+1 {
			return fmt.Errorf("partition %d: offset %d is not committed", last.Partition, last.Offset+1)
		}
		matrix.Print(matrix.Line{"committed": map[string]int64{strconv.Itoa(int(last.Partition)): last.Offset + 1}})
		return nil
	}
	return member.run(consumer)
}

func transactional(request *matrix.Request) (*sarama.Config, error) {
	config, err := newConfig(request)
	makeIdempotent(config)
	config.Producer.Transaction.ID = request.TransactionalID
	return config, err
}

func transact(request *matrix.Request) error {
	config, err := transactional(request)
	if err != nil {
		return err
	}
	if request.Partition != nil {
		config.Producer.Partitioner = sarama.NewManualPartitioner
	}
	producer, err := sarama.NewAsyncProducer(brokers(request), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	messages := make([]*sarama.ProducerMessage, len(request.Values))
	for index, value := range request.Values {
		messages[index] = &sarama.ProducerMessage{Topic: request.Topic, Value: sarama.StringEncoder(value)}
		if request.Partition != nil {
			messages[index].Partition = *request.Partition
		}
	}
	if err := send(producer, messages, func() {}); err != nil {
		return err
	}
	end := producer.AbortTxn
	if request.End == "commit" {
		end = producer.CommitTxn
	}
	if err := end(); err != nil {
		return err
	}
	matrix.Print(matrix.Line{"ended": request.End})
	return nil
}

// worker has the one producer that all partitions of a pipeline share.
type worker struct {
	request  *matrix.Request
	lock     sync.Mutex
	producer sarama.SyncProducer
}

// process writes the records and commits their offsets, in one transaction.
func (w *worker) process(_ sarama.ConsumerGroupSession, messages []*sarama.ConsumerMessage) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.producer == nil {
		config, err := transactional(w.request)
		if err != nil {
			return err
		}
		producer, err := sarama.NewSyncProducer(brokers(w.request), config)
		if err != nil {
			return err
		}
		w.producer = producer
	}
	if err := w.transact(messages); err != nil {
		return errors.Join(err, w.abort())
	}
	matrix.Print(matrix.Line{"committed": len(messages)})
	return nil
}

func (w *worker) transact(messages []*sarama.ConsumerMessage) error {
	if err := w.producer.BeginTxn(); err != nil {
		return err
	}
	processed := make([]*sarama.ProducerMessage, len(messages))
	for index, message := range messages {
		processed[index] = &sarama.ProducerMessage{
			Topic: w.request.Sink,
			Key:   sarama.ByteEncoder(message.Key),
			Value: sarama.StringEncoder("processed " + string(message.Value)),
		}
	}
	if err := w.producer.SendMessages(processed); err != nil {
		return err
	}
	if err := w.producer.AddMessageToTxn(messages[len(messages)-1], w.request.Group, nil); err != nil {
		return err
	}
	return w.producer.CommitTxn()
}

// abort ends the transaction. A producer that can do nothing more is replaced with the next records.
func (w *worker) abort() error {
	for {
		status := w.producer.TxnStatus()
		if status&sarama.ProducerTxnFlagFatalError != 0 {
			err := w.producer.Close()
			w.producer = nil
			return err
		}
		if status&sarama.ProducerTxnFlagReady != 0 {
			return nil
		}
		if err := w.producer.AbortTxn(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(retryPause)
		}
	}
}

func pipeline(request *matrix.Request) error {
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumerGroup(brokers(request), request.Group, config)
	if err != nil {
		return err
	}
	worker := &worker{request: request}
	if err := (&handle{topic: request.Source, work: worker.process}).run(consumer); err != nil {
		return err
	}
	if worker.producer != nil {
		return worker.producer.Close()
	}
	return nil
}

func admin(request *matrix.Request) error {
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	client, err := sarama.NewClusterAdmin(brokers(request), config)
	if err != nil {
		return err
	}
	defer client.Close()
	topic := request.Topic

	retention := "3600000"
	if err := client.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions:     2,
		ReplicationFactor: 3,
		ConfigEntries:     map[string]*string{"retention.ms": &retention},
	}, false); err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	matrix.Did("create_topics", matrix.Line{"topic": topic})

	described, err := describe(client, topic, 2)
	if err != nil {
		return err
	}
	matrix.Did("describe_topics", described)

	if err := client.CreatePartitions(topic, 4, nil, false); err != nil {
		return fmt.Errorf("create partitions: %w", err)
	}
	if described, err = describe(client, topic, 4); err != nil {
		return err
	}
	matrix.Did("create_partitions", described)

	changed := "7200000"
	if err := client.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &changed},
	}, false); err != nil {
		return fmt.Errorf("alter configs: %w", err)
	}
	matrix.Did("alter_configs", matrix.Line{"retention.ms": changed})

	configs, err := client.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"},
	})
	if err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	seen := matrix.Line{}
	for _, config := range configs {
		seen[config.Name] = config.Value
	}
	matrix.Did("describe_configs", seen)

	topics, err := client.ListTopics()
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	names := []string{}
	for name := range topics {
		names = append(names, name)
	}
	matrix.Did("list_topics", names)

	groups, err := client.ListConsumerGroups()
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	ids := []string{}
	for id := range groups {
		ids = append(ids, id)
	}
	matrix.Did("list_groups", ids)

	if err := client.DeleteTopic(topic); err != nil {
		return fmt.Errorf("delete topic: %w", err)
	}
	matrix.Did("delete_topics", matrix.Line{"topic": topic})
	return nil
}

// describe waits until the broker that is asked knows `partitions` partitions: brokers learn of them one after another.
func describe(client sarama.ClusterAdmin, topic string, partitions int) (matrix.Line, error) {
	for deadline := time.Now().Add(adminTimeout); ; time.Sleep(retryPause) {
		topics, err := client.DescribeTopics([]string{topic})
		if err != nil {
			return nil, fmt.Errorf("describe topics: %w", err)
		}
		found := topics[0]
		if errors.Is(found.Err, sarama.ErrNoError) && len(found.Partitions) == partitions {
			return matrix.Line{"partitions": partitions, "replicas": len(found.Partitions[0].Replicas)}, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("describe topics: %d partitions, %w", len(found.Partitions), found.Err)
		}
	}
}

// nameOf returns Kafka's name of an error that a broker has answered.
func nameOf(err error) string {
	switch {
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed):
		return "TOPIC_AUTHORIZATION_FAILED"
	case errors.Is(err, sarama.ErrSASLAuthenticationFailed):
		return "SASL_AUTHENTICATION_FAILED"
	}
	return "another error"
}

func login(request *matrix.Request) error {
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	config.Metadata.Retry = sarama.NewConfig().Metadata.Retry
	client, err := sarama.NewClient(brokers(request), config)
	matrix.LoggedIn(nameOf(err), err)
	if err != nil {
		return nil
	}
	return client.Close()
}

func denied(request *matrix.Request) error {
	config, err := newConfig(request)
	if err != nil {
		return err
	}
	client, err := sarama.NewClient(brokers(request), config)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	for _, written := range request.Writes() {
		for _, value := range written.Values {
			message := &sarama.ProducerMessage{Topic: written.Topic, Value: sarama.StringEncoder(value)}
			partition, offset, err := producer.SendMessage(message)
			if err != nil {
				matrix.Refused(nameOf(err), "write", written.Topic, err)
				continue
			}
			matrix.Acked([]byte(value), partition, offset)
		}
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	for _, topic := range request.Denied {
		if err := firstError(consumer, topic); err != nil {
			matrix.Refused(nameOf(err), "read", topic, err)
		}
	}
	partition, err := consumer.ConsumePartition(request.Topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	for range len(request.Before) + len(request.After) {
		message := <-partition.Messages()
		matrix.Consumed(message.Key, message.Value, message.Partition, message.Offset, message.Timestamp)
	}
	return partition.Close()
}

// firstError reads a partition that may not be read.
func firstError(consumer sarama.Consumer, topic string) error {
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer partition.AsyncClose()
	return <-partition.Errors()
}

// Drives kafka-go, of segmentio, for the client matrix. It has no transactions and no idempotent producer.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"ottla/clients/matrix"
)

const (
	sessionTimeout    = 6 * time.Second
	heartbeatInterval = time.Second
	batchTimeout      = 5 * time.Millisecond // one second by default
	metadataTTL       = time.Second          // or a writer looks for a dead leader for 6 s
	maxWait           = 250 * time.Millisecond
	adminTimeout      = 60 * time.Second
	retryPause        = 50 * time.Millisecond
	retries           = 100
)

var failures = kafka.LoggerFunc(log.New(os.Stderr, "kafka-go: ", log.Ltime).Printf)

func main() {
	matrix.Main(map[string]func(*matrix.Request) error{
		"produce":  produce,
		"write":    write,
		"consume":  consume,
		"group":    group,
		"transact": transact,
		"pipeline": transact,
		"admin":    admin,
		"login":    login,
		"denied":   denied,
	})
}

func transact(*matrix.Request) error { return matrix.Unsupported("kafka-go has no transactions") }

func brokers(request *matrix.Request) []string { return strings.Split(request.Bootstrap, ",") }

func address(request *matrix.Request) net.Addr { return kafka.TCP(brokers(request)...) }

// connection returns what writers and admins connect with, and what readers do.
func connection(request *matrix.Request) (*kafka.Transport, *kafka.Dialer, error) {
	transport := &kafka.Transport{MetadataTTL: metadataTTL}
	dialer := &kafka.Dialer{Timeout: kafka.DefaultDialer.Timeout, DualStack: true}
	security := request.Security
	if security == nil {
		return transport, dialer, nil
	}
	encrypted, err := security.TLS()
	if err != nil {
		return nil, nil, err
	}
	login, err := mechanism(security)
	transport.TLS, transport.SASL = encrypted, login
	dialer.TLS, dialer.SASLMechanism = encrypted, login
	return transport, dialer, err
}

// mechanism returns nil for a client that does not log in.
func mechanism(security *matrix.Security) (sasl.Mechanism, error) {
	switch security.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		return plain.Mechanism{Username: security.User, Password: security.Password}, nil
	case "SCRAM-SHA-256":
		return scram.Mechanism(scram.SHA256, security.User, security.Password)
	case "SCRAM-SHA-512":
		return scram.Mechanism(scram.SHA512, security.User, security.Password)
	}
	return nil, matrix.Unsupported("kafka-go has no " + security.Mechanism)
}

// newWriter returns a writer that prints each acknowledgement. Messages have a topic of their own, one of `topics` if there are any.
func newWriter(request *matrix.Request, topics ...string) (*kafka.Writer, error) {
	transport, _, err := connection(request)
	if err != nil {
		return nil, err
	}
	transport.MetadataTopics = topics
	return &kafka.Writer{
		Addr:         address(request),
		BatchTimeout: batchTimeout,
		MaxAttempts:  retries,
		RequiredAcks: kafka.RequireAll,
		Transport:    transport,
		ErrorLogger:  failures,
		Completion: func(messages []kafka.Message, err error) {
			for _, message := range messages {
				if err == nil {
					matrix.Acked(message.Value, int32(message.Partition), message.Offset)
				}
			}
		},
	}, nil
}

func produce(request *matrix.Request) error {
	if request.Idempotent {
		return matrix.Unsupported("kafka-go has no idempotent producer")
	}
	codecs := map[string]kafka.Compression{
		"gzip":   kafka.Gzip,
		"snappy": kafka.Snappy,
		"lz4":    kafka.Lz4,
		"zstd":   kafka.Zstd,
	}
	acks := map[string]kafka.RequiredAcks{"all": kafka.RequireAll, "1": kafka.RequireOne, "0": kafka.RequireNone}
	writer, err := newWriter(request)
	if err != nil {
		return err
	}
	writer.Compression = codecs[request.Compression]
	writer.RequiredAcks = acks[request.Acks]
	writer.Async = true
	var failed error // batches of one partition are completed one after another
	acked := writer.Completion
	writer.Completion = func(messages []kafka.Message, err error) {
		failed = errors.Join(failed, err)
		acked(messages, err)
	}
	for index, value := range request.Values {
		if index > 0 {
			request.Pause()
		}
		message := kafka.Message{Topic: request.Topic, Key: request.Key(index), Value: []byte(value)}
		if err := writer.WriteMessages(context.Background(), message); err != nil {
			return err
		}
	}
	return errors.Join(writer.Close(), failed) // Close waits for the acknowledgements
}

func write(request *matrix.Request) error {
	if request.Idempotent {
		return matrix.Unsupported("kafka-go has no idempotent producer")
	}
	writer, err := newWriter(request)
	if err != nil {
		return err
	}
	writer.Async = true
	acked := writer.Completion
	writer.Completion = func(messages []kafka.Message, err error) {
		acked(messages, err)
		for _, message := range messages {
			if err != nil {
				matrix.Failed(message.Value, err)
			}
		}
	}
	err = matrix.EachLine(func(value []byte) {
		if err := writer.WriteMessages(context.Background(), kafka.Message{Topic: request.Topic, Value: value}); err != nil {
			matrix.Failed(value, err)
		}
	})
	return errors.Join(err, writer.Close())
}

func newReader(request *matrix.Request, topic string, partition int) (*kafka.Reader, error) {
	_, dialer, err := connection(request)
	if err != nil {
		return nil, err
	}
	isolation := kafka.ReadUncommitted
	if request.Isolation == "read_committed" {
		isolation = kafka.ReadCommitted
	}
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers:        brokers(request),
		Dialer:         dialer,
		Topic:          topic,
		Partition:      partition,
		MaxWait:        maxWait,
		IsolationLevel: isolation,
		ErrorLogger:    failures,
	}), nil
}

func consume(request *matrix.Request) error {
	ctx := context.Background()
	reader, err := newReader(request, request.Topic, int(*request.Partition))
	if err != nil {
		return err
	}
	defer reader.Close()
	switch {
	case request.From.Offset != nil:
		err = reader.SetOffset(*request.From.Offset)
	case request.From.TimestampMs != nil:
		err = reader.SetOffsetAt(ctx, time.UnixMilli(*request.From.TimestampMs))
	case request.From.Name == "latest":
		var end int64
		if end, err = endOffset(ctx, request); err == nil {
			err = reader.SetOffset(end)
		}
	default:
		err = reader.SetOffset(kafka.FirstOffset)
	}
	if err != nil {
		return err
	}
	matrix.Print(matrix.Line{"ready": true})
	for count := 0; count < request.Count; {
		message, err := reader.FetchMessage(ctx)
		if err != nil { // the reader goes on by itself
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		if isMarker(message) {
			return matrix.Unsupported("kafka-go reads aborted records, too, and takes the markers of transactions for records")
		}
		count++
		matrix.Consumed(message.Key, message.Value, int32(message.Partition), message.Offset, message.Time)
	}
	return nil
}

// isMarker returns whether the message is the end of a transaction: version 0 and the type are its key.
func isMarker(message kafka.Message) bool {
	return bytes.Equal(message.Key, []byte{0, 0, 0, 0}) || bytes.Equal(message.Key, []byte{0, 0, 0, 1})
}

func endOffset(ctx context.Context, request *matrix.Request) (int64, error) {
	client, err := newClient(request)
	if err != nil {
		return 0, err
	}
	partition := int(*request.Partition)
	wanted := map[string][]kafka.OffsetRequest{request.Topic: {kafka.LastOffsetOf(partition)}}
	answer, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: wanted})
	if err != nil {
		return 0, err
	}
	found := answer.Topics[request.Topic][0]
	return found.LastOffset, found.Error
}

func group(request *matrix.Request) error {
	if request.Protocol != "" {
		return matrix.Unsupported("kafka-go has no groups of the new kind")
	}
	_, dialer, err := connection(request)
	if err != nil {
		return err
	}
	member, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                request.Group,
		Brokers:           brokers(request),
		Dialer:            dialer,
		Topics:            []string{request.Topic},
		SessionTimeout:    sessionTimeout,
		HeartbeatInterval: heartbeatInterval,
		JoinGroupBackoff:  retryPause,
		StartOffset:       kafka.FirstOffset,
		ErrorLogger:       failures,
	})
	if err != nil {
		return err
	}
	ctx := matrix.UntilStdinCloses()
	for {
		generation, err := member.Next(ctx)
		if ctx.Err() != nil {
			return member.Close() // leaves the group
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		numbers := []int{}
		for _, mine := range generation.Assignments[request.Topic] {
			numbers = append(numbers, mine.ID)
			generation.Start(func(ctx context.Context) { process(ctx, request, generation, mine) })
		}
		slices.Sort(numbers)
		matrix.Print(matrix.Line{"assigned": numbers})
	}
}

// process reads a partition until the generation ends, or until a commit fails, which ends it.
func process(ctx context.Context, request *matrix.Request, generation *kafka.Generation, mine kafka.PartitionAssignment) {
	reader, err := newReader(request, request.Topic, mine.ID)
	if err == nil {
		defer reader.Close()
		err = reader.SetOffset(mine.Offset)
	}
	for err == nil {
		message, problem := reader.FetchMessage(ctx)
		if ctx.Err() != nil {
			return
		}
		if problem != nil { // the reader goes on by itself
			fmt.Fprintln(os.Stderr, problem)
			continue
		}
		matrix.Print(matrix.Line{
			"value": string(message.Value), "partition": message.Partition, "offset": message.Offset,
		})
		next := message.Offset + 1
		err = generation.CommitOffsets(map[string]map[int]int64{request.Topic: {mine.ID: next}})
		if err == nil {
			matrix.Print(matrix.Line{"committed": map[string]int64{strconv.Itoa(mine.ID): next}})
		}
	}
	fmt.Fprintln(os.Stderr, err)
}

func newClient(request *matrix.Request) (*kafka.Client, error) {
	transport, _, err := connection(request)
	return &kafka.Client{Addr: address(request), Transport: transport}, err
}

func admin(request *matrix.Request) error {
	client, err := newClient(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	topic := request.Topic

	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: topic, NumPartitions: 2, ReplicationFactor: 3,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "3600000"}},
	}}})
	if err == nil {
		err = created.Errors[topic]
	}
	if err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	matrix.Did("create_topics", matrix.Line{"topic": topic})

	described, err := describe(ctx, client, topic, 2)
	if err != nil {
		return err
	}
	matrix.Did("describe_topics", described)

	more := []kafka.TopicPartitionsConfig{{Name: topic, Count: 4}}
	extended, err := client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: more})
	if err == nil {
		err = extended.Errors[topic]
	}
	if err != nil {
		return fmt.Errorf("create partitions: %w", err)
	}
	if described, err = describe(ctx, client, topic, 4); err != nil {
		return err
	}
	matrix.Did("create_partitions", described)

	changed := kafka.IncrementalAlterConfigsRequestConfig{
		Name: "retention.ms", Value: "7200000", ConfigOperation: kafka.ConfigOperationSet,
	}
	altered, err := client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{changed},
		}},
	})
	if err == nil {
		err = altered.Resources[0].Error
	}
	if err != nil {
		return fmt.Errorf("alter configs: %w", err)
	}
	matrix.Did("alter_configs", matrix.Line{changed.Name: changed.Value})

	configs, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"retention.ms"},
		}},
	})
	if err == nil {
		err = configs.Resources[0].Error
	}
	if err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	seen := matrix.Line{}
	for _, config := range configs.Resources[0].ConfigEntries {
		seen[config.ConfigName] = config.ConfigValue
	}
	matrix.Did("describe_configs", seen)

	topics, err := client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	names := []string{}
	for _, found := range topics.Topics {
		names = append(names, found.Name)
	}
	matrix.Did("list_topics", names)

	groups, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err == nil {
		err = groups.Error
	}
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	ids := []string{}
	for _, found := range groups.Groups {
		ids = append(ids, found.GroupID)
	}
	matrix.Did("list_groups", ids)

	deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err == nil {
		err = deleted.Errors[topic]
	}
	if err != nil {
		return fmt.Errorf("delete topic: %w", err)
	}
	matrix.Did("delete_topics", matrix.Line{"topic": topic})
	return nil
}

// describe waits until the broker that is asked knows `partitions` partitions: brokers learn of them one after another.
func describe(ctx context.Context, client *kafka.Client, topic string, partitions int) (matrix.Line, error) {
	for {
		answer, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil {
			return nil, fmt.Errorf("describe topics: %w", err)
		}
		found := answer.Topics[0]
		if found.Error == nil && len(found.Partitions) == partitions {
			return matrix.Line{"partitions": partitions, "replicas": len(found.Partitions[0].Replicas)}, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("describe topics: %d partitions, %w", len(found.Partitions), found.Error)
		case <-time.After(retryPause):
		}
	}
}

// nameOf returns Kafka's name of an error that a broker has answered.
func nameOf(err error) string {
	var each kafka.WriteErrors
	if errors.As(err, &each) {
		err = errors.Join(each...)
	}
	switch {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return "TOPIC_AUTHORIZATION_FAILED"
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		return "SASL_AUTHENTICATION_FAILED"
	}
	return "another error"
}

func login(request *matrix.Request) error {
	client, err := newClient(request)
	if err != nil {
		return err
	}
	_, err = client.Metadata(context.Background(), &kafka.MetadataRequest{Topics: []string{}})
	matrix.LoggedIn(nameOf(err), err)
	return nil
}

func denied(request *matrix.Request) error {
	// In the list of all topics, by which it looks by default, a hidden topic is missing: it would say that there is no such topic.
	writer, err := newWriter(request, append([]string{request.Topic}, request.Denied...)...)
	if err != nil {
		return err
	}
	for _, written := range request.Writes() {
		for _, value := range written.Values {
			message := kafka.Message{Topic: written.Topic, Value: []byte(value)}
			if err := writer.WriteMessages(context.Background(), message); err != nil {
				matrix.Refused(nameOf(err), "write", written.Topic, err)
			}
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	for _, topic := range request.Denied {
		if _, err := readFirst(request, topic, 1); err != nil {
			matrix.Refused(nameOf(err), "read", topic, err)
		}
	}
	messages, err := readFirst(request, request.Topic, len(request.Before)+len(request.After))
	for _, message := range messages {
		matrix.Consumed(message.Key, message.Value, int32(message.Partition), message.Offset, message.Time)
	}
	return err
}

// readFirst reads partition 0 from its beginning, until an error.
func readFirst(request *matrix.Request, topic string, count int) ([]kafka.Message, error) {
	reader, err := newReader(request, topic, 0)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var messages []kafka.Message
	for len(messages) < count {
		message, err := reader.FetchMessage(context.Background())
		if err != nil {
			return messages, err
		}
		messages = append(messages, message)
	}
	return messages, nil
}

// Drives franz-go for the client matrix.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"ottla/clients/matrix"
)

const (
	sessionTimeout    = 6 * time.Second
	heartbeatInterval = time.Second
	adminTimeout      = 60 * time.Second
	retryPause        = 50 * time.Millisecond
)

func main() {
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

func newClient(request *matrix.Request, options ...kgo.Opt) (*kgo.Client, error) {
	connection, err := common(request)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(connection, options...)...)
}

func common(request *matrix.Request) ([]kgo.Opt, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(request.Bootstrap, ",")...),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	}
	security := request.Security
	if security == nil {
		return options, nil
	}
	encrypted, err := security.TLS()
	if err != nil {
		return nil, err
	}
	options = append(options, kgo.DialTLSConfig(encrypted))
	if security.Mechanism == "" {
		return options, nil
	}
	user := scram.Auth{User: security.User, Pass: security.Password}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: security.User, Pass: security.Password}.AsMechanism(),
		"SCRAM-SHA-256": user.AsSha256Mechanism(),
		"SCRAM-SHA-512": user.AsSha512Mechanism(),
		"OAUTHBEARER": oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := security.ReadToken()
			return oauth.Auth{Token: token}, err
		}),
	}
	mechanism, isKnown := mechanisms[security.Mechanism]
	if !isKnown {
		return nil, matrix.Unsupported("without " + security.Mechanism)
	}
	return append(options, kgo.SASL(mechanism)), nil
}

func isolation(request *matrix.Request) kgo.Opt {
	if request.Isolation == "read_committed" {
		return kgo.FetchIsolationLevel(kgo.ReadCommitted())
	}
	return kgo.FetchIsolationLevel(kgo.ReadUncommitted())
}

// printAcked is the promise of a produced record.
func printAcked(failed *error) func(*kgo.Record, error) {
	return func(record *kgo.Record, err error) {
		if err != nil {
			*failed = errors.Join(*failed, fmt.Errorf("%s: %w", record.Value, err))
			return
		}
		matrix.Acked(record.Value, record.Partition, record.Offset)
	}
}

// newProducer is for all verbs that write without transactions.
func newProducer(request *matrix.Request, options ...kgo.Opt) (*kgo.Client, error) {
	if !request.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	return newClient(request, options...)
}

func produce(request *matrix.Request) error {
	codecs := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}
	acks := map[string]kgo.Acks{"all": kgo.AllISRAcks(), "1": kgo.LeaderAck(), "0": kgo.NoAck()}
	compression := kgo.ProducerBatchCompression(codecs[request.Compression])
	client, err := newProducer(request, compression, kgo.RequiredAcks(acks[request.Acks]))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed error // promises are called one after another
	for index, value := range request.Values {
		if index > 0 {
			request.Pause()
		}
		record := &kgo.Record{Topic: request.Topic, Key: request.Key(index), Value: []byte(value)}
		client.Produce(context.Background(), record, printAcked(&failed))
	}
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	return failed
}

func write(request *matrix.Request) error {
	client, err := newProducer(request, kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		return err
	}
	defer client.Close()
	delivered := func(record *kgo.Record, err error) {
		if err != nil {
			matrix.Failed(record.Value, err)
			return
		}
		matrix.Acked(record.Value, record.Partition, record.Offset)
	}
	err = matrix.EachLine(func(value []byte) {
		client.Produce(context.Background(), &kgo.Record{Topic: request.Topic, Value: value}, delivered)
	})
	return errors.Join(err, client.Flush(context.Background()))
}

// firstFetch prints that the consumer is ready when its first Fetch request leaves: the client knows the offset then.
type firstFetch struct{ once sync.Once }

func (f *firstFetch) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == kmsg.Fetch.Int16() && err == nil {
		f.once.Do(func() { matrix.Print(matrix.Line{"ready": true}) })
	}
}

func consume(request *matrix.Request) error {
	offset := kgo.NewOffset()
	switch {
	case request.From.Offset != nil:
		offset = offset.At(*request.From.Offset)
	case request.From.TimestampMs != nil:
		offset = offset.AfterMilli(*request.From.TimestampMs)
	case request.From.Name == "latest":
		offset = offset.AtEnd()
	default:
		offset = offset.AtStart()
	}
	client, err := newClient(request,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{request.Topic: {*request.Partition: offset}}),
		kgo.WithHooks(&firstFetch{}),
		isolation(request),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for count := 0; count < request.Count; {
		fetches := client.PollFetches(context.Background())
		report(fetches)
		fetches.EachRecord(func(record *kgo.Record) {
			if count++; count <= request.Count {
				matrix.Consumed(record.Key, record.Value, record.Partition, record.Offset, record.Timestamp)
			}
		})
	}
	return nil
}

// report logs the errors of a poll. The client recovers from them by itself.
func report(fetches kgo.Fetches) {
	fetches.EachError(func(topic string, partition int32, err error) {
		fmt.Fprintf(os.Stderr, "%s-%d: %v\n", topic, partition, err)
	})
}

// member returns what every member of a group is configured with.
func member(request *matrix.Request, topic string, assignment *matrix.Assignment) ([]kgo.Opt, error) {
	change := func(added, removed map[string][]int32) {
		if assignment != nil {
			assignment.Change(added[topic], removed[topic])
		}
	}
	connection, err := common(request)
	if request.Protocol == "consumer" {
		connection = append(connection, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	return append(connection,
		kgo.ConsumerGroup(request.Group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { change(added, nil) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { change(nil, lost) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { change(nil, lost) }),
	), err
}

func group(request *matrix.Request) error {
	assignment := &matrix.Assignment{}
	options, err := member(request, request.Topic, assignment)
	if err != nil {
		return err
	}
	// A partition does not move between a poll and the commit of what the poll returned.
	client, err := kgo.NewClient(append(options, kgo.BlockRebalanceOnPoll())...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance() // leaves the group
	for ctx := matrix.UntilStdinCloses(); ; client.AllowRebalance() {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		report(fetches)
		committed := map[string]int64{}
		fetches.EachRecord(func(record *kgo.Record) {
			matrix.Print(matrix.Line{
				"value": string(record.Value), "partition": record.Partition, "offset": record.Offset,
			})
			committed[strconv.Itoa(int(record.Partition))] = record.Offset + 1
		})
		if len(committed) == 0 {
			continue
		}
		if err := client.CommitRecords(context.Background(), fetches.Records()...); err != nil {
			fmt.Fprintln(os.Stderr, err) // the next commit has these offsets, too
			continue
		}
		matrix.Print(matrix.Line{"committed": committed})
	}
}

func transact(request *matrix.Request) error {
	options := []kgo.Opt{kgo.TransactionalID(request.TransactionalID)}
	if request.Partition != nil {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	client, err := newClient(request, options...)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	var failed error
	for _, value := range request.Values {
		record := &kgo.Record{Topic: request.Topic, Value: []byte(value)}
		if request.Partition != nil {
			record.Partition = *request.Partition
		}
		client.Produce(context.Background(), record, printAcked(&failed))
	}
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if err := client.EndTransaction(context.Background(), request.End == "commit"); err != nil {
		return err
	}
	matrix.Print(matrix.Line{"ended": request.End})
	return nil
}

// pipeline starts a session again after an error: no error that ends a session can be retried in it. The new session aborts
// a transaction that is open, and continues at the committed offsets.
func pipeline(request *matrix.Request) error {
	ctx := matrix.UntilStdinCloses()
	for ctx.Err() == nil {
		if err := transactions(ctx, request); err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(retryPause)
		}
	}
	return nil
}

// transactions processes records until the context ends.
func transactions(ctx context.Context, request *matrix.Request) error {
	options, err := member(request, request.Source, nil)
	if err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(append(options,
		kgo.TransactionalID(request.TransactionalID),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
	)...)
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		fetches := session.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		report(fetches)
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		written := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			processed := &kgo.Record{Topic: request.Sink, Key: record.Key, Value: []byte("processed " + string(record.Value))}
			session.Produce(context.Background(), processed, written.Promise())
		})
		// End aborts by itself, and starts again at the committed offsets, if the group rebalances or a record fails.
		isCommitted, err := session.End(context.Background(), written.Err() == nil)
		if err != nil {
			return err
		}
		if isCommitted {
			matrix.Print(matrix.Line{"committed": fetches.NumRecords()})
		}
	}
}

func admin(request *matrix.Request) error {
	connection, err := newClient(request)
	if err != nil {
		return err
	}
	defer connection.Close()
	client := kadm.NewClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	topic := request.Topic

	retention := "3600000"
	created, err := client.CreateTopic(ctx, 2, 3, map[string]*string{"retention.ms": &retention}, topic)
	if err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	matrix.Did("create_topics", matrix.Line{"topic": created.Topic, "partitions": created.NumPartitions})

	described, err := describe(ctx, client, topic, 2)
	if err != nil {
		return err
	}
	matrix.Did("describe_topics", described)

	answers, err := client.UpdatePartitions(ctx, 4, topic)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return fmt.Errorf("create partitions: %w", err)
	}
	described, err = describe(ctx, client, topic, 4)
	if err != nil {
		return err
	}
	matrix.Did("create_partitions", described)

	changed := "7200000"
	alterations, err := client.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &changed}}, topic)
	if err == nil {
		_, err = alterations.On(topic, func(answer *kadm.AlterConfigsResponse) error { return answer.Err })
	}
	if err != nil {
		return fmt.Errorf("alter configs: %w", err)
	}
	matrix.Did("alter_configs", matrix.Line{"retention.ms": changed})

	configs, err := client.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	seen := matrix.Line{}
	if _, err := configs.On(topic, func(resource *kadm.ResourceConfig) error {
		for _, config := range resource.Configs {
			if config.Key == "retention.ms" {
				seen[config.Key] = config.MaybeValue()
			}
		}
		return resource.Err
	}); err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	matrix.Did("describe_configs", seen)

	topics, err := client.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	matrix.Did("list_topics", topics.Names())

	groups, err := client.ListGroups(ctx)
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	matrix.Did("list_groups", append([]string{}, groups.Groups()...))

	if _, err := client.DeleteTopic(ctx, topic); err != nil {
		return fmt.Errorf("delete topic: %w", err)
	}
	matrix.Did("delete_topics", matrix.Line{"topic": topic})
	return nil
}

// describe waits until the broker that is asked knows `partitions` partitions: brokers learn of them one after another.
func describe(ctx context.Context, client *kadm.Client, topic string, partitions int) (matrix.Line, error) {
	for {
		topics, err := client.ListTopics(ctx, topic)
		if err != nil {
			return nil, fmt.Errorf("describe topics: %w", err)
		}
		detail := topics[topic]
		if detail.Err == nil && len(detail.Partitions) == partitions {
			return matrix.Line{"partitions": partitions, "replicas": detail.Partitions.NumReplicas()}, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("describe topics: %d partitions, %v", len(detail.Partitions), detail.Err)
		case <-time.After(retryPause):
		}
	}
}

// nameOf returns Kafka's name of an error that a broker has answered.
func nameOf(err error) string {
	if answered := (*kerr.Error)(nil); errors.As(err, &answered) {
		return answered.Message
	}
	return "no answer"
}

// innermost returns the text of the first error, around which the others are.
func innermost(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

func login(request *matrix.Request) error {
	client, err := newClient(request)
	if err != nil {
		return err
	}
	defer client.Close()
	if err = client.Ping(context.Background()); err == nil {
		matrix.LoggedIn("", nil)
	} else if answered := (*kerr.Error)(nil); errors.As(err, &answered) {
		matrix.LoggedIn(answered.Message, err)
	} else {
		matrix.LoggedIn(innermost(err), err)
	}
	return nil
}

func denied(request *matrix.Request) error {
	places := map[string]map[int32]kgo.Offset{}
	for _, topic := range append([]string{request.Topic}, request.Denied...) {
		places[topic] = map[int32]kgo.Offset{0: kgo.NewOffset().AtStart()}
	}
	client, err := newClient(request)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, written := range request.Writes() {
		for _, value := range written.Values {
			record := &kgo.Record{Topic: written.Topic, Value: []byte(value)}
			if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
				matrix.Refused(nameOf(err), "write", written.Topic, err)
				continue
			}
			matrix.Acked(record.Value, record.Partition, record.Offset)
		}
	}
	consumer, err := newClient(request, kgo.ConsumePartitions(places))
	if err != nil {
		return err
	}
	defer consumer.Close()
	unread, unrefused := len(request.Before)+len(request.After), len(request.Denied)
	seen := map[string]bool{}
	for unread > 0 || unrefused > 0 {
		fetches := consumer.PollFetches(context.Background())
		fetches.EachError(func(topic string, _ int32, err error) {
			if !seen[topic] {
				seen[topic] = true
				unrefused--
				matrix.Refused(nameOf(err), "read", topic, err)
			}
		})
		fetches.EachRecord(func(record *kgo.Record) {
			unread--
			matrix.Consumed(record.Key, record.Value, record.Partition, record.Offset, record.Timestamp)
		})
	}
	return nil
}

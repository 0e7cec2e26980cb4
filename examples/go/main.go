// Writes orders, reads them as a consumer group, and reports what it did for `ottla verify run`.
//
//	cd examples/go && go build -o /tmp/orders .
//	ottla verify run --topic orders:6 --fault "kill leader of orders-0 at 5s" -- /tmp/orders
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const topic, group = "orders", "billing"

var (
	lock         sync.Mutex
	acknowledged atomic.Int64
	billed       sync.Map
	billedCount  atomic.Int64
)

// report writes the line with one call, so that lines of two goroutines do not mix.
func report(format string, values ...any) {
	lock.Lock()
	defer lock.Unlock()
	os.Stdout.WriteString("@ottla " + fmt.Sprintf(format, values...) + "\n")
}

func produce(servers []string, stopping <-chan os.Signal) {
	client, err := kgo.NewClient(kgo.SeedBrokers(servers...), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ticks := time.NewTicker(5 * time.Millisecond)
	for number := 0; ; number++ {
		select {
		case <-stopping:
			client.Flush(context.Background())
			return
		case <-ticks.C:
		}
		order := fmt.Sprintf("order-%d", number)
		report("produced topic=%s id=%s", topic, order) // before it is sent
		record := &kgo.Record{Topic: topic, Key: []byte(order), Value: []byte(fmt.Sprintf("%d pieces", number))}
		client.Produce(context.Background(), record, func(written *kgo.Record, err error) {
			if err != nil {
				report("failed topic=%s id=%s", topic, order)
				return
			}
			report("acked topic=%s partition=%d offset=%d id=%s", topic, written.Partition, written.Offset, order)
			acknowledged.Add(1)
		})
	}
}

// commit reports what the cluster has acknowledged.
func commit(ctx context.Context, client *kgo.Client) {
	before := client.UncommittedOffsets()
	if len(before) == 0 || client.CommitUncommittedOffsets(ctx) != nil {
		return // the next commit will do
	}
	for partition, position := range before[topic] {
		report("committed group=%s topic=%s partition=%d offset=%d", group, topic, partition, position.Offset)
	}
}

func consume(servers []string, produced <-chan struct{}) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // a partition does not move while its records are worked on
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, _ map[string][]int32) { commit(ctx, client) }),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.CloseAllowingRebalance()
	isProduced := false
	for !isProduced || billedCount.Load() < acknowledged.Load() {
		select {
		case <-produced:
			isProduced = true
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := client.PollFetches(ctx)
		cancel()
		fetches.EachRecord(func(record *kgo.Record) {
			order := string(record.Key)
			if _, isThere := billed.LoadOrStore(order, true); !isThere { // the work on the record
				billedCount.Add(1)
			}
			report("consumed group=%s topic=%s partition=%d offset=%d id=%s", group, topic, record.Partition, record.Offset, order)
		})
		if !fetches.Empty() {
			commit(context.Background(), client)
		}
		client.AllowRebalance()
	}
}

func main() {
	servers := strings.Split(os.Getenv("BOOTSTRAP_SERVERS"), ",")
	stopping := make(chan os.Signal, 1)
	signal.Notify(stopping, syscall.SIGTERM)
	produced := make(chan struct{})
	go func() {
		produce(servers, stopping)
		close(produced)
	}()
	consume(servers, produced)
}

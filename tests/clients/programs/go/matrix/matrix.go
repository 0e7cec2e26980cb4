// Package matrix reads what a program of the client matrix is asked for, and prints what the client saw.
//
//	PROGRAM VERB JSON
//
// Each answer is one line of JSON on stdout. The exit code is 0 if the client did what was asked, 3 if it has no such
// thing, and 1 if it failed.
package matrix

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

const unsupportedExitCode = 3

// Request has the fields of all verbs.
type Request struct {
	Bootstrap       string   `json:"bootstrap"`
	Topic           string   `json:"topic"`
	Partition       *int32   `json:"partition"`
	Values          []string `json:"values"`
	Keys            []string `json:"keys"`
	Compression     string   `json:"compression"`
	Acks            string   `json:"acks"`
	Idempotent      bool     `json:"idempotent"`
	PauseMs         int      `json:"pause_ms"`
	From            From     `json:"from"`
	Count           int      `json:"count"`
	Isolation       string   `json:"isolation"`
	Group           string   `json:"group"`
	Protocol        string   `json:"protocol"` // of the group: "consumer", or empty for "classic"
	TransactionalID string   `json:"transactional_id"`
	End             string   `json:"end"`
	Source          string   `json:"source"`
	Sink            string   `json:"sink"`

	Security *Security `json:"security"` // nil: in the clear
	Denied   []string  `json:"denied"`
	Before   []string  `json:"before"`
	After    []string  `json:"after"`
}

// Security is how a client says who it is: by SASL_SSL, or, without a mechanism, by SSL with a certificate of its own.
type Security struct {
	Authority   string `json:"authority"` // a file: whoever it has signed is trusted
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`       // a file, for OAUTHBEARER
	Certificate string `json:"certificate"` // a file, with its key
}

// ReadToken returns the token of OAUTHBEARER.
func (s *Security) ReadToken() (string, error) {
	token, err := os.ReadFile(s.Token)
	return string(token), err
}

// TLS returns a configuration that checks the name of the broker, too.
func (s *Security) TLS() (*tls.Config, error) {
	authority, err := os.ReadFile(s.Authority)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate", s.Authority)
	}
	config := &tls.Config{RootCAs: trusted}
	if s.Certificate != "" {
		own, err := tls.LoadX509KeyPair(s.Certificate, s.Certificate)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// Written is one topic of the verb "denied", and what is written to it, in turn.
type Written struct {
	Topic  string
	Values []string
}

// Writes returns what the verb "denied" writes: to its topic, to those that are denied, and to its topic again.
func (r *Request) Writes() []Written {
	writes := []Written{{r.Topic, r.Before}}
	for _, topic := range r.Denied {
		writes = append(writes, Written{topic, []string{"denied"}})
	}
	return append(writes, Written{r.Topic, r.After})
}

// From is where a consumer starts. One of the fields is set.
type From struct {
	Name        string // earliest or latest
	Offset      *int64
	TimestampMs *int64
}

// UnmarshalJSON reads "earliest", "latest", {"offset": n} or {"timestamp_ms": t}.
func (f *From) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		return json.Unmarshal(data, &f.Name)
	}
	place := struct {
		Offset      *int64 `json:"offset"`
		TimestampMs *int64 `json:"timestamp_ms"`
	}{}
	err := json.Unmarshal(data, &place)
	f.Offset, f.TimestampMs = place.Offset, place.TimestampMs
	return err
}

// Key returns the key of the value with that index, or nil.
func (r *Request) Key(index int) []byte {
	if r.Keys == nil {
		return nil
	}
	return []byte(r.Keys[index])
}

// Pause waits between two records.
func (r *Request) Pause() { time.Sleep(time.Duration(r.PauseMs) * time.Millisecond) }

// Unsupported is the error of a verb that the client does not have.
type Unsupported string

func (u Unsupported) Error() string { return string(u) }

// Line is one answer.
type Line map[string]any

var printing sync.Mutex

// Print writes a line at once.
func Print(line Line) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

// Acked prints that a record was acknowledged.
func Acked(value []byte, partition int32, offset int64) {
	Print(Line{"acked": string(value), "partition": partition, "offset": offset})
}

// Failed prints that a record failed.
func Failed(value []byte, saw error) {
	Print(Line{"failed": string(value), "error": saw.Error()})
}

// Consumed prints a record that a consumer without a group has read.
func Consumed(key, value []byte, partition int32, offset int64, timestamp time.Time) {
	var printedKey any
	if key != nil {
		printedKey = string(key)
	}
	Print(Line{
		"value": string(value), "key": printedKey, "partition": partition, "offset": offset,
		"timestamp_ms": timestamp.UnixMilli(),
	})
}

// Refused prints the error by which a broker refused a topic. `name` is Kafka's name of the error, and `to` is "write" or "read".
func Refused(name, to, topic string, saw error) {
	Print(Line{"refused": name, "to": to, "topic": topic, "saw": saw.Error()})
}

// LoggedIn prints what came of a login. `name` is Kafka's name of the error, if there is one.
func LoggedIn(name string, saw error) {
	if saw == nil {
		Print(Line{"logged_in": true})
	} else {
		Print(Line{"refused": name, "saw": saw.Error()})
	}
}

// Did prints one step of an admin client.
func Did(step string, saw any) { Print(Line{"did": step, "saw": saw}) }

// Assignment is the partitions of a member of a group. It is printed whenever it changes.
type Assignment struct {
	partitions []int32
}

// Change adds and removes partitions.
func (a *Assignment) Change(added, removed []int32) {
	for _, partition := range removed {
		a.partitions = slices.DeleteFunc(a.partitions, func(known int32) bool { return known == partition })
	}
	for _, partition := range added {
		if !slices.Contains(a.partitions, partition) {
			a.partitions = append(a.partitions, partition)
		}
	}
	slices.Sort(a.partitions)
	Print(Line{"assigned": append([]int32{}, a.partitions...)})
}

// EachLine calls back for each line of stdin, when it comes.
func EachLine(call func(line []byte)) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		call(slices.Clone(lines.Bytes()))
	}
	return lines.Err()
}

// UntilStdinCloses returns a context that ends when stdin is closed.
func UntilStdinCloses() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

// Main runs the verb of the command line, and ends the process.
func Main(verbs map[string]func(*Request) error) {
	if len(os.Args) != 3 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: PROGRAM VERB JSON")
		os.Exit(2)
	}
	request := &Request{}
	if err := json.Unmarshal([]byte(os.Args[2]), request); err != nil {
		fmt.Fprintln(os.Stderr, "the JSON argument cannot be read:", err)
		os.Exit(2)
	}
	err := verbs[os.Args[1]](request)
	if reason := Unsupported(""); errors.As(err, &reason) {
		Print(Line{"unsupported": string(reason)})
		os.Exit(unsupportedExitCode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

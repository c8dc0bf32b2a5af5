// Package crilog reads containers' logs in CRI's format (Kubernetes, design proposal
// "kubelet-cri-logging"): one line per record,
//
//	2026-01-02T03:04:05.678901234Z stdout F text
//
// where the tag is F for a whole line and P for a piece of one that the next record of the
// stream goes on with. Memory is bounded whatever the records are: what is longer than the buffer
// is passed on in pieces. Files are followed with inotify, through rotation: the writer renames
// the file away and goes on with a new one of the old name.
//
// It is a module of its own, because `coracle logs` and the cluster's kubelet both read logs.
package crilog

import (
	"bytes"
	"fmt"
	"time"
)

// Stream is what a container wrote to.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Line is one record, or a piece of a long one.
type Line struct {
	Time    time.Time
	Stream  Stream
	Partial bool   // the line goes on in the stream's next Line
	Text    []byte // without the newline; valid until the next Line is read
}

// Parse reads a record, given without its newline.
func Parse(record []byte) (Line, error) {
	stamp, rest, ok := bytes.Cut(record, []byte{' '})
	stream, rest, ok2 := bytes.Cut(rest, []byte{' '})
	// An empty line may come without the space behind the tag.
	tag, text, _ := bytes.Cut(rest, []byte{' '})
	if !ok || !ok2 {
		return Line{}, fmt.Errorf("%.60q is no log record: it has to be TIME STREAM TAG TEXT", record)
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Line{}, fmt.Errorf("%.60q is no log record: %q is no time", record, stamp)
	}
	l := Line{Time: at, Stream: Stream(stream), Text: text}
	if l.Stream != Stdout && l.Stream != Stderr {
		return Line{}, fmt.Errorf("%.60q is no log record: %.20q is neither stdout nor stderr", record, stream)
	}
	// Tags may grow by more parts, divided by colons; the first one counts.
	switch first, _, _ := bytes.Cut(tag, []byte{':'}); string(first) {
	case "F":
	case "P":
		l.Partial = true
	default:
		return Line{}, fmt.Errorf("%.60q is no log record: its tag %.20q is neither F nor P", record, tag)
	}
	return l, nil
}

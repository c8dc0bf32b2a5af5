package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// orOther is for a program of ours that ended with err because another process holds lock, and does
// what it was to do: it awaits that one, for as long as that holds the lock. Without another, err
// is what went wrong.
func orOther(ctx context.Context, err error, lock, what, log string, answers func(context.Context) error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if ended, other := awaitHolder(ctx, lock, what, log, answers); ended || other != nil {
		return err
	}
	return nil
}

// awaitHolder awaits the process that holds lock. If that ends first, there is no error: the lock
// is free. A process that was killed holds its locks for a moment.
func awaitHolder(ctx context.Context, lock, what, log string, answers func(context.Context) error) (ended bool, err error) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	err = await(waiting, what, log, nil, func(try context.Context) error {
		pid, err := holder(lock)
		if err == nil && pid == 0 {
			ended = true
			stop()
			return errors.New("it has ended")
		}
		if err != nil {
			return err
		}
		return answers(try)
	})
	if ended {
		return true, nil
	}
	return false, err
}

// longestTry is how long to wait for an answer: another program may listen there and say nothing.
const longestTry = 2 * time.Second

// await returns when answers does not fail any more, or fails with otherRelease. If cmd ends
// before, or ctx does, the error says so and quotes the end of the log.
func await(ctx context.Context, what, log string, cmd *exec.Cmd, answers func(context.Context) error) error {
	var ended <-chan struct{}
	var end func() error
	if cmd != nil {
		ended, end = exit(cmd)
	}
	for {
		try, cancel := context.WithTimeout(ctx, longestTry)
		err := answers(try)
		cancel()
		if other := (otherRelease{}); err == nil || errors.As(err, &other) {
			return err
		}
		select {
		case <-ended:
			err := fmt.Errorf("%s ended as soon as it had been started: %s; see %s", what, reason(log), log)
			if code(end()) == exitForGood {
				return forGood{err}
			}
			return err
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; see %s, which ends with: %s", what, err, log, reason(log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// reason is the line of a log, among the last, that says best what went wrong: the last that a
// program of ours ended with, or else the last of all.
func reason(log string) string {
	lines := strings.Split(tail(log), "\n")
	for _, line := range slices.Backward(lines) {
		for _, program := range []string{"coracle-kube: ", "coracled: "} {
			if said, ok := strings.CutPrefix(line, program); ok {
				return said
			}
		}
	}
	return lines[len(lines)-1]
}

// tail is the last lines of a log.
func tail(path string) string {
	const most = 2048
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(size-most, 0), io.SeekStart)
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data))
}

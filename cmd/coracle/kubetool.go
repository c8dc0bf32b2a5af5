package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// kubeTool has coracle-kube, which is linked with Kubernetes' client, do something, and decodes its
// answer, unless into is nil. The error is what it ended with.
func kubeTool(ctx context.Context, into any, args ...string) error {
	return kubeToolReading(ctx, "", into, args...)
}

// kubeToolReading is kubeTool with a standard input: for secrets, since every user of the machine
// can read the arguments of a process.
func kubeToolReading(ctx context.Context, input string, into any, args ...string) error {
	program, err := sibling("coracle-kube")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"--log-level", "error"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = snapshotEnd
	var answer, complaints bytes.Buffer
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = &answer, &complaints
	err = cmd.Run()
	if ctx.Err() != nil && cmd.ProcessState != nil && cmd.ProcessState.Success() && !errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it was told to stop, and had an answer
	}
	if err != nil {
		return outdated(program, complaint(complaints.String(), err))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer.Bytes(), into)
}

// otherRelease is that coracle-kube does not know what it was asked, because it is of another
// release. Another try would fail, too.
type otherRelease struct{ error }

// outdated returns err, and says what it means if coracle-kube does not know a command or a flag.
func outdated(program string, err error) error {
	for _, unknown := range []string{"unknown flag: ", "unknown command ", "does not know what to do with "} {
		if strings.Contains(err.Error(), unknown) {
			return otherRelease{fmt.Errorf("%s is of another release than this coracle: install both from one release: %w", program, err)}
		}
	}
	return err
}

func (o otherRelease) Unwrap() error { return o.error }

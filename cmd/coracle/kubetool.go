package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	if err := cmd.Run(); err != nil {
		return complaint(complaints.String(), err)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer.Bytes(), into)
}

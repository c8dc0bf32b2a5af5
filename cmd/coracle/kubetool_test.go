package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kubeScript has a script be coracle-kube.
func kubeScript(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "coracle-kube"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Regression: an answer that coracle-kube gave when it was told to stop was thrown away.
func TestAnswerToAnInterrupt(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "waits")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FIFO", fifo)
	const waits = `sleep 600 >/dev/null 2>&1 & waits=$!; echo >"$FIFO"; wait $waits`
	for _, tc := range []struct{ name, script, answer string }{
		{"it answers", `trap 'kill $waits; echo "\"two lags\""; exit 0' TERM; ` + waits, "two lags"},
		{"it fails", `trap 'kill $waits; echo "coracle-kube: cut off" >&2; exit 1' TERM; ` + waits, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kubeScript(t, tc.script)
			ctx, interrupt := context.WithCancel(t.Context())
			go func() {
				defer interrupt()
				_, _ = os.ReadFile(fifo)
			}()
			var answer string
			err := kubeTool(ctx, &answer, "certificate", "rotate")
			if answer != tc.answer || (err == nil) != (tc.answer != "") {
				t.Errorf("the answer is %q, %v; want %q", answer, err, tc.answer)
			}
		})
	}
}

// Regression: up asked a coracle-kube of an older release for five minutes.
func TestCoracleKubeOfAnotherRelease(t *testing.T) {
	for _, said := range []string{"unknown flag: --since", `coracle-kube agent takes flags only, and does not know what to do with "await"`} {
		kubeScript(t, `echo 'coracle-kube: `+said+`' >&2; exit 1`)
		tries := 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := await(ctx, "the node", filepath.Join(t.TempDir(), "log"), nil, func(try context.Context) error {
			tries++
			return kubeTool(try, nil, "agent", "await")
		})
		cancel()
		other := otherRelease{}
		if tries != 1 || !errors.As(err, &other) || !strings.Contains(err.Error(), "of another release than this coracle") ||
			!strings.HasSuffix(err.Error(), said) {
			t.Errorf("after %d tries: %v", tries, err)
		}
	}
}

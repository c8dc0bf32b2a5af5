package server

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/lazy/toc"
	"github.com/coracle-project/coracle/image/registry"
)

// A container that reads in a loop what cannot be read fills no disk with complaints.
func TestReaderInALoopDoesNotFillTheLog(t *testing.T) {
	blob, table := smallLayer(t)
	synctest.Test(t, func(t *testing.T) {
		tree, err := toc.Read(bytes.NewReader(blob), int64(len(blob)), table, nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := new(clients).get(registry.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.release()
		var lines lineCounter
		l := &shown{
			Layer: lazy.Layer{Timeout: time.Second, Domain: "no registry", Path: "app"}, // which fails at once
			tree:  tree, chunks: newChunks(), slots: newSlots(), log: slog.New(slog.NewTextHandler(&lines, nil)),
		}
		l.source = &source{layer: l.Layer, client: client}
		id, ok := tree.Node(toc.Root).Lookup("file")
		if !ok {
			t.Fatal("the layer has no file")
		}
		read := func() {
			t.Helper()
			if _, err := l.ReadAt(t.Context(), tree.Node(id), make([]byte, 1), 0); err == nil {
				t.Fatal("it was read")
			}
		}
		for range 1000 {
			read()
		}
		if lines != complaintsAtOnce {
			t.Errorf("%d lines are logged", lines)
		}
		time.Sleep(complaintPause) // of the bubble's clock
		read()
		read()
		if lines != complaintsAtOnce+1 {
			t.Errorf("%d lines are logged after a pause", lines)
		}
	})
}

type lineCounter int

func (n *lineCounter) Write(p []byte) (int, error) {
	*n++
	return len(p), nil
}

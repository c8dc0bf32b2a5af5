package apiserver

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Regression: without a quorum of etcd, an API server tried to take its endpoint back for 20 s
// before it stopped.
func TestAServerWithoutAQuorumStopsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		stopped, began := false, time.Now()
		withdraw(func() { stopped = true }, log)
		if !stopped || time.Since(began) != 0 || said.Len() != 0 {
			t.Errorf("with a quorum: %t, after %v: %s", stopped, time.Since(began), &said)
		}
		never := make(chan struct{})
		withdraw(func() { <-never }, log)
		if took := time.Since(began); took > 2*time.Second || !strings.Contains(said.String(), "stays published until its lease expires") {
			t.Errorf("without one: after %v: %s", took, &said)
		}
		close(never)
	})
}

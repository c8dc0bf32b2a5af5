package client_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
)

func BenchmarkExec(b *testing.B) {
	r := newRig(b)
	req := r.request("sleep 1000")
	r.run(req)
	var out bytes.Buffer
	p := process("/bin/true")
	for b.Loop() {
		if _, err := r.c.Exec(r.ctx(), client.ExecRequest{
			PodID: pod, ID: req.ID, Process: p, Streams: client.Streams{Stdout: &out, Stderr: &out},
		}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreateStartKillDelete(b *testing.B) {
	r := newRig(b)
	req := r.request("exec sleep 1000")
	for b.Loop() {
		r.run(req)
		if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL}); err != nil {
			b.Fatal(err)
		}
		r.exit(req.ID)
		r.mu.Lock()
		delete(r.exits, req.ID)
		r.mu.Unlock()
		if err := r.c.Delete(r.ctx(), pod, req.ID); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStatus(b *testing.B) {
	r := newRig(b)
	req := r.request("sleep 1000")
	r.run(req)
	for b.Loop() {
		if _, err := r.c.Status(r.ctx(), pod, req.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLog is a container's output on its way into the log.
func BenchmarkLog(b *testing.B) {
	r := newRig(b)
	for b.Loop() {
		req := r.request("exec dd if=/dev/zero bs=64k count=1600")
		r.run(req)
		r.exit(req.ID)
		if err := r.c.Delete(r.ctx(), pod, req.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(1600 << 16)
}

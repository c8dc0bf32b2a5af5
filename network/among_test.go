package network

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/nspin"
)

// BenchmarkAmong is how long the steps of a start take among few and many pods.
func BenchmarkAmong(b *testing.B) {
	for _, count := range []int{10, 1000} {
		b.Run(fmt.Sprint("pods=", count), func(b *testing.B) {
			m := started(b, testConfig(b))
			m.builtin.linger = patience
			dir := b.TempDir()
			var made, up time.Duration
			one := func(id string) {
				t0 := time.Now()
				set, err := pins.Create(b.Context(), filepath.Join(dir, id), nspin.Spec{Net: true, IPC: true, UTS: true})
				if err != nil {
					b.Fatal(err)
				}
				t1 := time.Now()
				if _, err := m.Setup(b.Context(), Pod{ID: id, NetNS: set.Net}); err != nil {
					b.Fatal(err)
				}
				made, up = made+t1.Sub(t0), up+time.Since(t1)
			}
			end := func(id string) {
				if err := m.Teardown(b.Context(), Pod{ID: id}); err != nil {
					b.Fatal(err)
				}
				if err := nspin.Remove(context.WithoutCancel(b.Context()), filepath.Join(dir, id)); err != nil {
					b.Fatal(err)
				}
			}
			for i := range count {
				one(fmt.Sprint("held", i))
			}
			made, up = 0, 0
			n := 0
			for b.Loop() {
				one(fmt.Sprint("pod", n))
				n++
			}
			b.ReportMetric(float64(made.Microseconds())/float64(n), "µs/namespaces")
			b.ReportMetric(float64(up.Microseconds())/float64(n), "µs/setup")
			for i := range n {
				end(fmt.Sprint("pod", i))
			}
			for i := range count {
				end(fmt.Sprint("held", i))
			}
			if err := m.Flush(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

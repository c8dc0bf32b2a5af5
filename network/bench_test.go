package network

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/nspin"
)

func BenchmarkSetupTeardown(b *testing.B) {
	for _, bc := range []struct {
		name  string
		ports []PortMapping
	}{
		{"plain", nil},
		{"ports=2", []PortMapping{{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}, {Protocol: "udp", HostPort: 5353, ContainerPort: 53}}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			m := started(b, testConfig(b))
			dir := b.TempDir()
			if _, err := m.builtin.ensureHost(); err != nil {
				b.Fatal(err)
			}
			var up, down, flushed time.Duration
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				ns := filepath.Join(dir, fmt.Sprint(i))
				set, err := pins.Create(b.Context(), ns, nspin.Spec{Net: true})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				p := Pod{ID: fmt.Sprint("pod", i), NetNS: set.Net, Ports: bc.ports}
				start := time.Now()
				if _, err := m.Setup(b.Context(), p); err != nil {
					b.Fatal(err)
				}
				mid := time.Now()
				if err := m.Teardown(b.Context(), p); err != nil {
					b.Fatal(err)
				}
				up += mid.Sub(start)
				down += time.Since(mid)
				b.StopTimer()
				mid = time.Now()
				if err := m.Flush(context.Background()); err != nil {
					b.Fatal(err)
				}
				flushed += time.Since(mid)
				if err := nspin.Remove(context.WithoutCancel(b.Context()), ns); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(up.Microseconds())/float64(b.N), "µs/setup")
			b.ReportMetric(float64(down.Microseconds())/float64(b.N), "µs/teardown")
			b.ReportMetric(float64(flushed.Microseconds())/float64(b.N), "µs/background")
		})
	}
}

// BenchmarkChurn is pods coming and going with nothing waited for.
func BenchmarkChurn(b *testing.B) {
	m := started(b, testConfig(b))
	dir := b.TempDir()
	var created, up, down, removed time.Duration
	for i := 0; b.Loop(); i++ {
		ns := filepath.Join(dir, fmt.Sprint(i))
		t0 := time.Now()
		set, err := pins.Create(b.Context(), ns, nspin.Spec{Net: true, IPC: true, UTS: true})
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		p := Pod{ID: fmt.Sprint("pod", i), NetNS: set.Net}
		if _, err := m.Setup(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		if err := m.Teardown(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		t3 := time.Now()
		if err := nspin.Remove(context.WithoutCancel(b.Context()), ns); err != nil {
			b.Fatal(err)
		}
		t4 := time.Now()
		created, up, down, removed = created+t1.Sub(t0), up+t2.Sub(t1), down+t3.Sub(t2), removed+t4.Sub(t3)
	}
	for name, d := range map[string]time.Duration{"create": created, "setup": up, "teardown": down, "remove": removed} {
		b.ReportMetric(float64(d.Microseconds())/float64(b.N), "µs/"+name)
	}
}

// BenchmarkGone is how long it takes until nothing of pods is left whose namespaces end together.
func BenchmarkGone(b *testing.B) {
	for _, count := range []int{1, 25, 100} {
		b.Run(fmt.Sprint("pods=", count), func(b *testing.B) {
			m := started(b, testConfig(b))
			m.builtin.linger = patience
			dir := b.TempDir()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				var pods []string
				for j := range count {
					id := fmt.Sprint("pod", i, "-", j)
					set, err := pins.Create(b.Context(), filepath.Join(dir, id), nspin.Spec{Net: true})
					if err != nil {
						b.Fatal(err)
					}
					if _, err := m.Setup(b.Context(), Pod{ID: id, NetNS: set.Net}); err != nil {
						b.Fatal(err)
					}
					pods = append(pods, id)
				}
				b.StartTimer()
				for _, id := range pods {
					if err := m.Teardown(b.Context(), Pod{ID: id}); err != nil {
						b.Fatal(err)
					}
					if err := nspin.Remove(context.WithoutCancel(b.Context()), filepath.Join(dir, id)); err != nil {
						b.Fatal(err)
					}
				}
				if err := m.Flush(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package snapshot

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func BenchmarkPrepareRemove(b *testing.B) {
	for _, n := range []int{1, 5} {
		b.Run(fmt.Sprintf("layers=%d", n), func(b *testing.B) {
			s := started(b, b.TempDir())
			layers := commitLayers(b, s, n)
			target := b.TempDir()
			var made, gone time.Duration
			for i := 0; b.Loop(); i++ {
				id := fmt.Sprint("c", i)
				start := time.Now()
				if _, err := s.Prepare(b.Context(), id, PrepareOptions{Layers: layers, Target: filepath.Join(target, id)}); err != nil {
					b.Fatal(err)
				}
				mid := time.Now()
				if err := s.Remove(b.Context(), id); err != nil {
					b.Fatal(err)
				}
				made += mid.Sub(start)
				gone += time.Since(mid)
				b.StopTimer()
				_ = s.Flush(b.Context())
				b.StartTimer()
			}
			b.ReportMetric(float64(made.Microseconds())/float64(b.N), "µs/prepare")
			b.ReportMetric(float64(gone.Microseconds())/float64(b.N), "µs/remove")
		})
	}
}

//go:build cgo && seccomp

package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

func BenchmarkCompile(b *testing.B) {
	p := defaultProfile(b)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Compile(p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cached", func(b *testing.B) {
		b.ReportAllocs()
		var c Cache
		for b.Loop() {
			if _, err := c.Compile(p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("runc", func(b *testing.B) {
		for b.Loop() {
			if _, err := reference(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkInstructions is no matter of time: it reports sizes, and how many instructions
// the calls of x86-64 take on average and at most.
func BenchmarkInstructions(b *testing.B) {
	p := knownToLibrary(b, defaultProfile(b))
	f, err := Compile(p)
	if err != nil {
		b.Fatal(err)
	}
	theirs, err := reference(p)
	if err != nil {
		b.Fatal(err)
	}
	for name, prog := range map[string][]unix.SockFilter{"ours": f.Insns, "runc": theirs} {
		b.Run(name, func(b *testing.B) {
			total, most := 0, 0
			const numbers = 463
			for b.Loop() {
				total = 0
				for nr := range uint32(numbers) {
					_, steps, err := run(prog, data{nr: nr, arch: archX8664.audit})
					if err != nil {
						b.Fatal(err)
					}
					total += steps
					most = max(most, steps)
				}
			}
			b.ReportMetric(float64(len(prog)), "size")
			b.ReportMetric(float64(total)/numbers, "steps/call")
			b.ReportMetric(float64(most), "most-steps")
		})
	}
}

package shim

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// BenchmarkAppendLog is the cost of one record without any system call.
func BenchmarkAppendLog(b *testing.B) {
	for name, line := range map[string]string{"empty": "\n", "100 bytes": strings.Repeat("x", 99) + "\n"} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte(line), chunkSize/len(line))
			var dst []byte
			records := 0
			for b.Loop() {
				for rest := data; len(rest) > 0; {
					var used int
					dst, used = appendLog(dst[:0], rest, time.Now(), "stdout", keepRest)
					rest = rest[used:]
				}
				records += len(data) / len(line)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
		})
	}
}

// BenchmarkPump is the cost of one record from the pipe into a log on disk.
func BenchmarkPump(b *testing.B) {
	for name, line := range map[string]string{"empty": "\n", "100 bytes": strings.Repeat("x", 99) + "\n"} {
		b.Run(name, func(b *testing.B) {
			r := newPumpRig(b)
			text := strings.Repeat(line, 32<<10/len(line))
			records := 0
			for b.Loop() {
				if _, err := r.fifo.WriteString(text); err != nil {
					b.Fatal(err)
				}
				r.p.carry(drainLimit)
				if records += len(text) / len(line); records > 1<<20 && records%(1<<20) < len(text)/len(line) {
					if err := os.Truncate(r.p.log.path, 0); err != nil { // not the disk is measured
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(records), "ns/record")
		})
	}
}

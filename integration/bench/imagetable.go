package main

import (
	"fmt"
	"strings"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// imageRows are the table: for each workload a row per figure.
func imageRows(rep imageReport) [][]string {
	c := compare("", rep.Results, func(r *imageResult) string { return r.Target })
	for i, w := range rep.Workloads {
		add := func(name, format string, value func(pulled) float64) {
			c.add(w+": "+name, func(r *imageResult) (float64, string) {
				v := value(r.Pulled[w])
				return v, fmt.Sprintf(format, v)
			})
		}
		add("cold, s", "%.2f", func(p pulled) float64 { return p.Cold })
		add("… CPU, s", "%.2f", func(p pulled) float64 { return p.ColdCPU })
		add("… peak RSS of the daemon, MB", "%.0f", func(p pulled) float64 { return p.PeakRSS })
		add(fmt.Sprintf("… disk, MB (files: %d)", rep.Unpacked[i]>>20), "%.0f", func(p pulled) float64 { return p.Disk })
		add("warm, s", "%.3f", func(p pulled) float64 { return p.Warm })
		add("… CPU, s", "%.2f", func(p pulled) float64 { return p.WarmCPU })
		add("CreateContainer, ms", "%.1f", func(p pulled) float64 { return p.Create })
		add("RemoveImage, ms", "%.1f", func(p pulled) float64 { return p.Remove })
	}
	return c.rows
}

// versions are those of the runtimes that were measured.
func (rep imageReport) versions() (all [][2]string) {
	for _, r := range rep.Results {
		all = append(all, [2]string{r.Target, r.Version})
	}
	return all
}

// imagePage is the part of docs/benchmarks.md about images.
func imagePage(rep imageReport) string {
	var b strings.Builder
	b.WriteString(string(page.Images) + "\n")
	b.WriteString(`
One run, one machine, the runtimes by turns, each with an empty directory, from a registry on
loopback. To repeat it:

    make bench-image

(` + "`BENCH_FLAGS=-md=docs/benchmarks.md`" + ` writes this part of the page.) × says how many times Coracle's figure
that is.

`)
	b.WriteString(page.Table(imageRows(rep)))
	b.WriteString(rep.Machine.circumstances(rep.Date, rep.versions()))
	fmt.Fprintf(&b, `
- Cold: PullImage with nothing there, until it has returned; of many images %d at a time. Warm: the same again. Median of
  %d rounds; the tiny images once.
- CPU: of the daemon and its children. All gzip, which compresses to two thirds. Every runtime finds igzip, which make deps installs.
- Disk: what was allocated, after sync, beyond an empty store. In brackets the files alone, in whole blocks.
  With each tiny image come some 25 kB that are not its files: manifest, configuration, its layer's record and recipe, and two
  directories, each in blocks of 4 kB.
- CreateContainer: median of %d, from the workload's first image. RemoveImage: of that image, which nothing uses.
`, pullers, rep.Rounds, creates)
	return b.String()
}

package main

import (
	"fmt"
	"strings"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// imagePage is the part of docs/benchmarks.md about images.
func imagePage(rep *report, o options) string {
	var b strings.Builder
	b.WriteString(string(page.Images) + "\n")
	fmt.Fprintf(&b, `
One machine, the runtimes in turns, and each time another one first, each with an empty directory on a new ext4, from a
registry on loopback; %d runs. To repeat it:

    make bench-image

(`+"`BENCH_FLAGS=-md=docs/benchmarks.md`"+` writes this part of the page.) × says how many times Coracle's figure
that is.

`, o.runs)
	b.WriteString(page.Table(rep.table()))
	b.WriteString(rep.circumstances())
	fmt.Fprintf(&b, `
- Cold: PullImage with nothing there, until it has returned; of many images %d at a time. Warm: the same again.
- CPU: of the daemon and its children. All gzip, which compresses to two thirds. Every runtime finds igzip, which make deps installs.
- Asynchronous: a pull returns before all is on the disk, with every runtime; "cold and on disk" is until a syncfs(2) right after it
  has returned. Coracle's RemoveImage returns when the image's name and record are gone, and deletes files behind it; containerd and CRI-O
  delete them in the call. "Until its space is free" is until the file system has as much free space as when all is quiet.
- Disk: what is allocated, on disk, beyond an empty store. In brackets the files alone, in whole blocks. containerd also keeps the
  compressed layers (discard_unpacked_layers is false, its default).
  With each tiny image come some 25 kB that are not its files: manifest, configuration, its layer's record and recipe, and two
  directories, each in blocks of 4 kB.
- CreateContainer: median of %d, from the workload's first image. RemoveImage: of that image, which nothing uses.
`, pullers, creates)
	return b.String()
}

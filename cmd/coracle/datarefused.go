package main

import (
	"io"
	"os"
	"slices"
	"strings"
)

// dataRefused is for a cluster process that does not start because a newer one has written the
// cluster's data.
type dataRefused struct{ line string }

func (d dataRefused) Error() string { return d.line }

// newerData are in the errors of the API server (dataversion.ErrNewer) and of etcd (etcd.ErrNewer).
// The log may be of any release, so these texts must not change.
func newerData() []string {
	return []string{"the cluster's data was written by a newer version", "data of a newer version"}
}

// logSize is how long a log is, bytes, 0 if there is none.
func logSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// newerDataLine is the last error of coracle-kube after the given position of its log, if it is
// that the data are of a newer version; "" if it is another, or there is none. systemd does not
// pass it on.
func newerDataLine(log string, from int64) string {
	const most = 64 << 10
	f, err := os.Open(log)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	size := logSize(log)
	if size < from { // it was set aside meanwhile
		from = 0
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(from, size-most), most))
	if err != nil {
		return ""
	}
	last := ""
	for line := range strings.Lines(string(data)) {
		if said, ok := strings.CutPrefix(line, "coracle-kube: "); ok {
			last = strings.TrimSpace(said)
		}
	}
	if slices.ContainsFunc(newerData(), func(text string) bool { return strings.Contains(last, text) }) {
		return last
	}
	return ""
}

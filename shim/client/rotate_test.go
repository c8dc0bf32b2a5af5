package client_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/client"
)

// logFiles are a container's log files, the oldest first.
func (r *rig) logFiles(path string) []string {
	r.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil {
		r.Fatal(err)
	}
	slices.SortFunc(names, func(a, b string) int {
		if a == path || b == path { // the one that is written has the shortest name
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return names
}

// whole is the text of all files of a log, without records' headers. Each file has to begin and end
// with a whole record.
func (r *rig) whole(path string) string {
	r.Helper()
	var text strings.Builder
	for _, name := range r.logFiles(path) {
		b, err := os.ReadFile(name)
		if err != nil {
			r.Fatal(err)
		}
		if len(b) > 0 && !bytes.HasSuffix(b, []byte("\n")) {
			r.Errorf("%s ends within a record", name)
		}
		text.WriteString(r.log(name, "stdout"))
	}
	return text.String()
}

// A log that is reopened all the time while a container writes as fast as it can: no line is lost,
// and none is split between two files.
func TestReopenAtFullSpeed(t *testing.T) {
	const lines = 300_000
	r := newRig(t)
	// Blocks of 4 kB that end anywhere in a line.
	req := r.request(fmt.Sprintf(`awk 'BEGIN { for (i = 1; i <= %d; i++) print "line number " i }'`, lines))
	began := time.Now()
	r.run(req)
	times := 0
	for ; !r.ended(req.ID); times++ {
		// As the kubelet does it.
		if err := os.Rename(req.LogPath, fmt.Sprintf("%s.%06d", req.LogPath, times)); err != nil {
			t.Fatal(err)
		}
		if err := r.c.ReopenLog(r.ctx(), pod, req.ID); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(began)
	if ev := r.exit(req.ID); ev.ExitCode != 0 {
		t.Errorf("event %+v", ev)
	}
	if got, want := r.whole(req.LogPath), numbered(lines, "\n"); got != want {
		t.Errorf("log: %s", firstDifference(got, want))
	}
	t.Logf("%.0f lines and %.0f times reopened in a second", lines/took.Seconds(), float64(times)/took.Seconds())
}

// ended says whether the container's exit has been told.
func (r *rig) ended(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.exits[id]
	return ok
}

// A shim that is killed again and again while a container fills its log: no line of those that the
// limit leaves is lost or twice, whichever step of a rotation is cut short.
func TestRotationSurvivesKill(t *testing.T) {
	const lines = 60_000
	r := newRig(t)
	req := r.request(count(lines))
	req.LogLimit = client.LogLimit{FileBytes: api.MinLogBytes, Files: 100}
	r.run(req)
	pid := 0
	for i := range 9 { // more, and the keeper slows down
		r.waitFor("rotations", func() bool { return len(r.logFiles(req.LogPath)) > i })
		r.waitNewShim(pid)
		pid = r.killShim()
	}
	r.waitNewShim(pid)
	if ev := r.exit(req.ID); ev.ExitCode != 0 {
		t.Errorf("event %+v", ev)
	}
	if got, want := r.whole(req.LogPath), numbered(lines, "\n"); got != want {
		t.Errorf("log: %s", firstDifference(got, want))
	}
	r.withinLimit(req)
}

func (r *rig) withinLimit(req client.LaunchRequest) {
	r.Helper()
	files, sum := r.logFiles(req.LogPath), int64(0)
	for _, name := range files {
		st, err := os.Stat(name)
		if err != nil {
			r.Fatal(err)
		}
		if st.Size() > req.LogLimit.FileBytes {
			r.Errorf("%s has %d bytes", name, st.Size())
		}
		sum += st.Size()
	}
	if len(files) > req.LogLimit.Files || sum > req.LogLimit.FileBytes*int64(req.LogLimit.Files) {
		r.Errorf("%d files, %d bytes", len(files), sum)
	}
}

// A log that is too small for what is written has the last lines.
func TestRotationWithinLimit(t *testing.T) {
	const lines = 60_000
	r := newRig(t)
	req := r.request(count(lines))
	req.LogLimit = client.LogLimit{FileBytes: api.MinLogBytes, Files: 3}
	r.run(req)
	if ev := r.exit(req.ID); ev.ExitCode != 0 {
		t.Errorf("event %+v", ev)
	}
	r.withinLimit(req)
	if got, want := r.whole(req.LogPath), numbered(lines, "\n"); len(got) < 100_000 || !strings.HasSuffix(want, "\n"+got) {
		t.Errorf("%d bytes, not the last ones", len(got))
	}
	if files := r.logFiles(req.LogPath); len(files) != 3 {
		t.Errorf("files %q", files)
	}
}

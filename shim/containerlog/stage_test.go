package containerlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/internal/rawfd"
)

// drainLimit is more than a test writes at once.
const drainLimit = 4 << 20

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pumpRig is a pump on a FIFO, without a container.
type pumpRig struct {
	testing.TB
	dir  string
	p    *Pump
	fifo *os.File
}

func newPumpRig(t testing.TB) *pumpRig {
	r := &pumpRig{TB: t, dir: t.TempDir()}
	if err := unix.Mkfifo(filepath.Join(r.dir, "stdout"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.fifo = r.open()
	r.begin()
	t.Cleanup(func() {
		r.p.Stop()
		r.p.log.Close()
		r.fifo.Close()
	})
	return r
}

// open opens the pipe as a shim does.
func (r *pumpRig) open() *os.File {
	r.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, "stdout"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		r.Fatal(err)
	}
	return f
}

// begin makes a pump as a new shim does.
func (r *pumpRig) begin() {
	r.Helper()
	pipe := r.open()
	st, err := openStage(filepath.Join(r.dir, "stdout.stage"))
	if err != nil {
		r.Fatal(err)
	}
	log, err := Open(Place{r.dir, "0.log"}, Limit{})
	if err != nil {
		r.Fatal(err)
	}
	r.p = &Pump{
		stream: "stdout", pipe: pipe, out: &Fanout{}, busy: func() {}, slog: slog.New(slog.DiscardHandler),
		ending: make(chan struct{}), done: make(chan struct{}), stage: st, log: log,
		share: NewShare(), rate: &Rate{}, turn: newTurn(),
	}
	if err := r.p.stage.recover(r.p.log); err != nil {
		r.Fatal(err)
	}
}

func (r *pumpRig) text() string {
	r.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, "0.log"))
	if err != nil {
		r.Fatal(err)
	}
	var text strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		if f[2] == "P" {
			f[3] = strings.TrimSuffix(f[3], "\n")
		}
		text.WriteString(f[3])
	}
	return text.String()
}

// A shim that dies after each step of the way, simulated by dropping the pump there.
func TestRecoverAtEachStep(t *testing.T) {
	for step, die := range map[string]func(r *pumpRig){
		"in the pipe": func(*pumpRig) {},
		"in the stage": func(r *pumpRig) {
			rawfd.With(r.p.pipe, func(fd int) { r.p.stage.fill(fd) })
		},
		"marked, nothing written": func(r *pumpRig) {
			rawfd.With(r.p.pipe, func(fd int) { r.p.stage.fill(fd) })
			m, _ := markOf(r.p.log.f)
			r.p.stage.mark(stageWriting, r.p.stage.start, m)
		},
		"half written": func(r *pumpRig) {
			rawfd.With(r.p.pipe, func(fd int) { r.p.stage.fill(fd) })
			m, _ := markOf(r.p.log.f)
			r.p.stage.mark(stageWriting, r.p.stage.start, m)
			r.p.log.f.WriteString("2026-01-02T12:00:00.000000006Z stdout F seco")
		},
		"written, not done": func(r *pumpRig) {
			rawfd.With(r.p.pipe, func(fd int) { r.p.stage.fill(fd) })
			m, _ := markOf(r.p.log.f)
			r.p.stage.mark(stageWriting, r.p.stage.start, m)
			r.p.log.f.WriteString("2026-01-02T12:00:00.000000006Z stdout F second\n")
		},
		"all done":  func(r *pumpRig) { r.p.carry(drainLimit) },
		"truncated": func(r *pumpRig) { r.p.carry(drainLimit); r.p.stage.f.Truncate(stageHeader) },
	} {
		t.Run(step, func(t *testing.T) {
			r := newPumpRig(t)
			r.fifo.WriteString("first\n")
			r.p.carry(drainLimit)
			r.fifo.WriteString("second\nunfin")
			die(r)
			r.p.Stop()
			r.p.log.Close()
			r.begin()
			r.fifo.WriteString("ished\n")
			r.p.carry(drainLimit)
			want := "first\nsecond\nunfinished\n"
			if step == "truncated" {
				want = "first\nsecond\nished\n" // only an empty stage is ever truncated
			}
			if got := r.text(); got != want {
				t.Errorf("log %q, want %q", got, want)
			}
		})
	}
}

// The stage of a stream that never stops at a line's end stays bounded.
func TestStageIsBounded(t *testing.T) {
	r := newPumpRig(t)
	var want bytes.Buffer
	for i := range 3000 {
		line := fmt.Sprintf("%d %s\n%d:", i, strings.Repeat("x", 1000), i)
		want.WriteString(line)
		r.fifo.WriteString(line)
		r.p.carry(drainLimit)
		if st, _ := r.p.stage.f.Stat(); st.Size() > 2*stageLimit {
			t.Fatalf("stage of %d bytes", st.Size())
		}
	}
	r.p.Drain()
	if r.text() != want.String() {
		t.Error("log differs")
	}
	if st, _ := r.p.stage.f.Stat(); st.Size() > stageLimit {
		t.Errorf("%d bytes are kept", st.Size())
	}
}

// A log that cannot be written must not stop the container; what is lost is said.
func TestLogFull(t *testing.T) {
	r := newPumpRig(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	good := r.p.log.f
	r.p.log.f = full
	r.fifo.WriteString("lost\n")
	r.p.carry(drainLimit)
	r.p.log.f = good
	full.Close()
	r.fifo.WriteString("kept\n")
	r.p.carry(drainLimit)
	if got := r.text(); got != string(lostNote(5))+"kept\n" {
		t.Errorf("log %q", got)
	}
}

// Regression: a shim died between the truncation and the header of an empty stage's reset, and the
// next one after it had taken bytes from the pipe. The header still said that those were logged.
func TestRecoverAfterReset(t *testing.T) {
	r := newPumpRig(t)
	r.fifo.WriteString(strings.Repeat("x", 99) + "\n")
	r.p.carry(drainLimit)
	r.p.stage.f.Truncate(stageHeader)
	for _, more := range []string{"", "taken\n"} {
		r.p.Stop()
		r.p.log.Close()
		r.begin()
		r.fifo.WriteString(more)
		rawfd.With(r.p.pipe, func(fd int) { r.p.stage.fill(fd) })
	}
	r.p.Stop()
	r.p.log.Close()
	r.begin()
	r.p.carry(drainLimit)
	if got, want := r.text(), strings.Repeat("x", 99)+"\ntaken\n"; got != want {
		t.Errorf("log %q, want %q", got, want)
	}
}

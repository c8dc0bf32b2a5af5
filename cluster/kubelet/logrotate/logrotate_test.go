package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/kubernetes/pkg/kubelet/logs"
)

// writer is a container and the runtime that writes its log.
type writer struct {
	t       *testing.T
	path    string
	file    *os.File
	lines   int
	refuses bool // to reopen
}

func newWriter(t *testing.T) *writer {
	w := &writer{t: t, path: filepath.Join(t.TempDir(), "0.log")}
	if err := w.reopen(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.file.Close() })
	return w
}

func (w *writer) reopen(_ context.Context, container string) (err error) {
	if w.refuses {
		return errors.New("no")
	}
	if container != "c" {
		w.t.Errorf("container %q", container)
	}
	if w.file != nil {
		_ = w.file.Close()
	}
	w.file, err = os.OpenFile(w.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	return err
}

// write appends n lines of 16 bytes, the first of which tells how many there were before.
func (w *writer) write(n int) {
	w.t.Helper()
	for range n {
		if _, err := w.file.WriteString(strings.Repeat("x", 15) + "\n"); err != nil {
			w.t.Fatal(err)
		}
		w.lines++
	}
}

func (w *writer) rotator(p Policy) *Rotator {
	return &Rotator{
		Log:    slog.New(slog.DiscardHandler),
		Policy: p.WithDefaults(), Running: func() []Log { return []Log{{"c", w.path}} }, Reopen: w.reopen,
	}
}

// files returns the sizes of the log's files as they were written, oldest first. They are found and
// put into order by upstream.
func (w *writer) files() (sizes []int) {
	w.t.Helper()
	all, err := logs.GetAllLogs(w.path)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range all {
		f, err := os.Open(name)
		if err != nil {
			w.t.Fatal(err)
		}
		var r io.Reader = f
		if strings.HasSuffix(name, packed) {
			if r, err = gzip.NewReader(f); err != nil {
				w.t.Fatal(err)
			}
		}
		n, err := io.Copy(io.Discard, r)
		if err != nil {
			w.t.Fatal(err)
		}
		_ = f.Close()
		sizes = append(sizes, int(n))
	}
	return sizes
}

func (w *writer) want(sizes ...int) {
	w.t.Helper()
	got := w.files()
	if len(got) != len(sizes) {
		w.t.Fatalf("files of %v bytes, want %v", got, sizes)
	}
	for i := range sizes {
		if got[i] != sizes[i] {
			w.t.Fatalf("files of %v bytes, want %v", got, sizes)
		}
	}
}

// A container that writes forever has so many files and no more; without a rotator it has one of
// any size.
func TestALogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, free := newWriter(t), newWriter(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			w.rotator(Policy{MaxSize: 160, MaxFiles: 3}).Run(ctx)
			close(done)
		}()
		for range 20 {
			w.write(10)
			free.write(10)
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		w.write(1)
		w.want(160, 160, 16)
		free.want(20 * 160)
		if names, err := filepath.Glob(w.path + ".*"); err != nil || len(names) != 2 || !strings.HasSuffix(names[0], packed) ||
			strings.HasSuffix(names[1], packed) {
			t.Errorf("files are %v, %v", names, err)
		}
		cancel()
		<-done
	})
}

func TestWhatIsWrittenBetweenTwoLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t)
		r := w.rotator(Policy{MaxSize: 160, MaxFiles: 5})
		look := func(lines int) {
			t.Helper()
			w.write(lines)
			if err := r.look(t.Context(), Log{"c", w.path}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // names tell seconds apart
		}
		look(9)
		w.want(144) // not full
		look(1)
		w.want(160, 0)
		look(100)
		w.want(160, 1600, 0) // followers may still read it
		look(10)
		w.want(160, 0) // those that were set aside before took more than five files may
	})
}

func TestInterruptedRotations(t *testing.T) {
	synctest.Test(t, interruptedRotations)
}

func interruptedRotations(t *testing.T) {
	w := newWriter(t)
	r := w.rotator(Policy{MaxSize: 160, MaxFiles: 5})
	full := Log{"c", w.path}
	w.write(10)
	// Killed between the two steps of compressing, and in the middle of the first.
	for name, content := range map[string]string{
		".19990101-000000": "ab", ".19990101-000000.gz": "", ".19990101-000001": "cd",
		".19990101-000001.tmp": "c",
	} {
		if err := os.WriteFile(w.path+name, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(w.path + ".19990101-000000.gz")
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	_, err = z.Write([]byte("ab"))
	if err = errors.Join(err, z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	// The runtime does not open another: the log keeps its name.
	w.refuses = true
	if err := r.look(t.Context(), full); err == nil || !strings.Contains(err.Error(), "reopen: no") {
		t.Errorf("the runtime refused: %v", err)
	}
	w.want(2, 2, 160)
	w.refuses = false
	if err := r.look(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	w.want(2, 2, 160, 0)
	time.Sleep(time.Second) // names tell seconds apart
	// Killed between the renaming and the call.
	if err := os.Rename(w.path, w.path+".20990101-000000"); err != nil {
		t.Fatal(err)
	}
	if err := r.look(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	w.want(2, 2, 160, 0, 0)
	if left, err := filepath.Glob(w.path + "*" + packing); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	// Only the log's own files are counted and removed.
	other := filepath.Join(filepath.Dir(w.path), "1.log.19990101-000000")
	if err := os.WriteFile(other, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	w.write(10)
	time.Sleep(time.Second)
	if err := w.rotator(Policy{MaxSize: 160, MaxFiles: 2}).look(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	w.want(160, 0)
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

// Names sort by age within one second, after the shim's rotations into seconds to come, and after
// the clock was set back.
func TestNamesSortByAge(t *testing.T) {
	for name, ahead := range map[string]time.Duration{
		"the same second": 0, "a second to come": 5 * time.Second,
		"the clock was set back": 3 * time.Hour,
	} {
		for _, ending := range []string{"", packed} {
			t.Run(name+ending, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWriter(t)
					r := w.rotator(Policy{MaxSize: 160, MaxFiles: 5})
					older := w.path + "." + time.Now().Add(ahead).Format(stamp) + ending
					f, err := os.Create(older)
					if err != nil {
						t.Fatal(err)
					}
					if ending == "" {
						_, err = f.WriteString("ab")
					} else {
						z := gzip.NewWriter(f)
						_, err = z.Write([]byte("ab"))
						err = errors.Join(err, z.Close())
					}
					if err = errors.Join(err, f.Close()); err != nil {
						t.Fatal(err)
					}
					w.write(10)
					want := []int{2, 160}
					for range 2 { // in the same second, too
						if err := r.look(t.Context(), Log{"c", w.path}); err != nil {
							t.Fatal(err)
						}
						w.want(append(want, 0)...)
						w.write(20)
						want = append(want, 320)
					}
				})
			})
		}
	}
}

// Regression: a runtime that opened the new log and answered too late, or as the kubelet ended,
// went on with a file that had no name.
func TestALateAnswerLosesNothing(t *testing.T) {
	for name, end := range map[string]bool{"too late": false, "the kubelet ends": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWriter(t)
				r := w.rotator(Policy{MaxSize: 160, MaxFiles: 5})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r.Reopen = func(ctx context.Context, container string) error {
					if end {
						cancel()
						if err := ctx.Err(); err != nil {
							t.Error("the call is given up as the kubelet ends:", err)
						}
					}
					err := w.reopen(ctx, container)
					<-ctx.Done() // the answer is lost
					return errors.Join(err, ctx.Err())
				}
				w.write(10)
				start := time.Now()
				if err := r.look(ctx, Log{"c", w.path}); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the call: %v", err)
				}
				if took := time.Since(start); took != reopenWithin {
					t.Errorf("the call took %s", took)
				}
				w.write(1)
				w.want(160, 16)
			})
		})
	}
}

func TestWithoutALimitNothingIsRotated(t *testing.T) {
	r := &Rotator{Policy: Policy{MaxSize: -1}.WithDefaults()} // it would panic if it looked
	r.Run(t.Context())
}

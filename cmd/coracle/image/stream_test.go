package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// recorded answers with chunks, and then with an error.
type recorded struct {
	chunks []*imagesv1.Chunk
	err    error
}

func (r *recorded) Recv() (*imagesv1.Chunk, error) {
	if len(r.chunks) == 0 {
		return nil, r.err
	}
	c := r.chunks[0]
	r.chunks = r.chunks[1:]
	return c, nil
}

func TestReceive(t *testing.T) {
	broken := errors.New("the daemon has gone")
	for name, tc := range map[string]struct {
		end  error
		read func(io.Reader) error
		want error
	}{
		"whole":                        {io.EOF, func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }, nil},
		"broken off":                   {broken, func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }, broken},
		"an error after the last byte": {broken, func(r io.Reader) error { _, err := io.ReadFull(r, make([]byte, 5)); return err }, broken},
		"unexpected, for a reason":     {broken, func(r io.Reader) error { _, _ = io.ReadAll(r); return io.ErrUnexpectedEOF }, broken},
		"our side fails":               {io.EOF, func(io.Reader) error { return os.ErrPermission }, os.ErrPermission},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := &recorded{[]*imagesv1.Chunk{{Total: 5, Notes: []string{"a note"}}, {Data: []byte("ab")}, {}, {Data: []byte("cde")}}, tc.end}
			if err := receive(s, bar.New(&out, "test"), tc.read); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if tc.want == nil && (!strings.Contains(out.String(), "test: a note\n") || !strings.Contains(out.String(), "test: 5B")) {
				t.Errorf("said %q", out.String())
			}
		})
	}
}

func TestTransmit(t *testing.T) {
	collect := func(into *bytes.Buffer, firsts *int, most int) func(bool, []byte) error {
		return func(first bool, data []byte) error {
			if first {
				*firsts++
			}
			if into.Len() > most {
				return io.EOF // the daemon has ended the call
			}
			into.Write(data)
			return nil
		}
	}
	for _, size := range []int{0, 1, pieceSize, 2*pieceSize + 1} {
		var got bytes.Buffer
		firsts := 0
		err := transmit(iotest.HalfReader(bytes.NewReader(make([]byte, size))), bar.New(io.Discard, ""), collect(&got, &firsts, 1<<30))
		if err != nil || got.Len() != size || firsts != 1 {
			t.Errorf("%d bytes: %d arrive, %d first messages, %v", size, got.Len(), firsts, err)
		}
	}
	var got bytes.Buffer
	firsts := 0
	if err := transmit(bytes.NewReader(make([]byte, 10*pieceSize)), bar.New(io.Discard, ""), collect(&got, &firsts, pieceSize)); err != nil {
		t.Errorf("ended by the daemon: %v", err)
	}
	broken := errors.New("the disk is on fire")
	if err := transmit(iotest.ErrReader(broken), bar.New(io.Discard, ""), collect(&got, &firsts, 1<<30)); !errors.Is(err, broken) {
		t.Errorf("unreadable: %v", err)
	}
}

func TestToFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "out")
	i, cmd := &images{daemon: daemon.New(nil)}, &cobra.Command{}
	put := func(text string, err error) error {
		return i.toFile(cmd, file, func(w io.Writer) error { _, _ = io.WriteString(w, text); return err })
	}
	if err := put("one", nil); err != nil {
		t.Fatal(err)
	}
	if err := put("half", os.ErrClosed); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "one" {
		t.Errorf("after a failure it is %q, %v", got, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// cannotSync has the open files below a directory not be synced: fsync(2) of /dev/null fails.
func cannotSync(t *testing.T, dir string) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors {
		path, err := os.Readlink("/proc/self/fd/" + d.Name())
		if err != nil || !strings.HasPrefix(path, dir+"/") {
			continue
		}
		fd, err := strconv.Atoi(d.Name())
		if err == nil {
			err = unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readerFunc is a reader that is one function.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// Regression: archives got their names unsynced, and could be empty after a power cut.
func TestFilesAreSynced(t *testing.T) {
	dir := t.TempDir()
	i, cmd := &images{daemon: daemon.New(nil)}, &cobra.Command{}
	err := i.toFile(cmd, filepath.Join(dir, "archive"), func(w io.Writer) error {
		cannotSync(t, dir)
		_, err := io.WriteString(w, "images")
		return err
	})
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("an archive that cannot be synced: %v", err)
	}
	var layout bytes.Buffer
	w := tar.NewWriter(&layout)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "oci-layout", Size: 1, Mode: 0o644})
	_, _ = io.WriteString(w, "x")
	_ = w.Close()
	err = extractLayout(readerFunc(func(b []byte) (int, error) {
		cannotSync(t, dir)
		return layout.Read(b)
	}), filepath.Join(dir, "layout"))
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("a layout that cannot be synced: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// What the daemon sends is written where it belongs, or not at all.
func TestExtractLayout(t *testing.T) {
	blob := "blobs/sha256/" + strings.Repeat("0a", 32)
	archive := func(names ...string) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, n := range names {
			_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n, Size: 1, Mode: 0o644})
			_, _ = w.Write([]byte("x"))
		}
		_ = w.Close()
		return &b
	}
	dir := t.TempDir()
	if err := extractLayout(archive("oci-layout", "index.json", blob), filepath.Join(dir, "good")); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := packLayout(&again, filepath.Join(dir, "good")); err != nil {
		t.Fatal(err)
	}
	if err := extractLayout(&again, filepath.Join(dir, "copy")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"../evil", "/etc/evil", "blobs/sha256/../../evil", "blobs/sha256/short", "README"} {
		if err := extractLayout(archive("oci-layout", name), filepath.Join(dir, "bad")); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if err := extractLayout(strings.NewReader("no archive"), filepath.Join(dir, "bad")); err == nil {
		t.Error("no archive was accepted")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := checkNewDir(filepath.Join(dir, "good")); err == nil {
		t.Error("a directory with a layout is taken for a new one")
	}
	if err := checkNewDir(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

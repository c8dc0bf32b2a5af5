package unpack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// FuzzLayer unpacks arbitrary bytes. Whatever they are, nothing outside the directory
// changes; unpackInto checks that.
func FuzzLayer(f *testing.F) {
	f.Add(archive(f, file("a", "1"), dir("b"), symlink("b/l", "../.."), file("b/l/secret", "x")))
	f.Add(archive(f, file(".wh.a", ""), file("a/b", "1"), hardlink("c", "a/b"), file("a/.wh..wh..opq", "")))
	f.Add(archive(f, symlink("l", "/"), hardlink("m", "l"), file("m/tmp/x", "1")))
	f.Add([]byte("junk"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = unpackInto(t, Limits{MaxBytes: 1 << 20, MaxEntries: 200}, data)
	})
}

// FuzzEntries makes a well-formed archive of arbitrary names and types, which reaches
// further than arbitrary bytes do.
func FuzzEntries(f *testing.F) {
	f.Add("0a|2l>..|0l/secret", "x")
	f.Add("2l>/|1m>l|0m/secret|5d|0d/.wh..wh..opq", "x")
	f.Add("0.wh.a|5a|0a/b|1c>a/b|2a>../..|0a/secret", "x")
	f.Fuzz(func(t *testing.T, script, body string) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for line := range strings.SplitSeq(script, "|") {
			if line == "" {
				continue
			}
			name, link, _ := strings.Cut(line[1:], ">")
			h := &tar.Header{Typeflag: line[0], Name: name, Linkname: link, Mode: 0o755}
			if h.Typeflag == tar.TypeReg {
				h.Size = int64(len(body))
			}
			if w.WriteHeader(h) == nil && h.Size > 0 {
				_, _ = io.WriteString(w, body)
			}
		}
		_ = w.Close()
		_, _ = unpackInto(t, Limits{MaxBytes: 1 << 20, MaxEntries: 200}, b.Bytes())
	})
}

func FuzzDecompress(f *testing.F) {
	f.Add(gzipped(f, []byte("hello")))
	f.Add(zstded(f, []byte("hello")))
	f.Add([]byte{0x1f, 0x8b, 8})
	f.Add([]byte("\x1f\x8b\b00000000")) // a header and nothing more was taken for a clean end
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		z, err := Decompress(t.Context(), bytes.NewReader(data), Limits{MaxBytes: 1 << 20})
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("error %v is not ErrInvalid", err)
			}
			return
		}
		if _, err := io.Copy(io.Discard, z); err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("error %v is not ErrInvalid", err)
		}
		z.Close()
	})
}

func gzipped(t testing.TB, data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	must(t, err)
	must(t, w.Close())
	return b.Bytes()
}

func zstded(t testing.TB, data []byte) []byte {
	w, err := zstd.NewWriter(nil)
	must(t, err)
	return w.EncodeAll(data, nil)
}

func TestDecompress(t *testing.T) {
	const text = "the same for all"
	for name, data := range map[string][]byte{
		"gzip":         gzipped(t, []byte(text)),
		"zstd":         zstded(t, []byte(text)),
		"plain":        []byte(text),
		"two gzips":    append(gzipped(t, []byte(text[:5])), gzipped(t, []byte(text[5:]))...),
		"zstd:chunked": append(zstded(t, []byte(text[:5])), append(zstded(t, []byte(text[5:])), 0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 'x')...),
		"zstd frame":   append([]byte{0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 'x'}, zstded(t, []byte(text))...),
	} {
		z, err := Decompress(t.Context(), bytes.NewReader(data), Limits{})
		must(t, err)
		got, err := io.ReadAll(z)
		must(t, err)
		must(t, z.Close())
		if string(got) != text {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestDecompressErrors(t *testing.T) {
	whole := gzipped(t, bytes.Repeat([]byte("text"), 1000))
	_, err := drain(t, bytes.NewReader(whole[:len(whole)-9]), Limits{})
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("cut off: %v, want ErrInvalid", err)
	}
	broken := errors.New("network")
	_, err = drain(t, io.MultiReader(bytes.NewReader(whole[:20]), errReader{broken}), Limits{})
	if !errors.Is(err, broken) || errors.Is(err, ErrInvalid) {
		t.Errorf("stream broken: %v, want the stream's own error", err)
	}
	// A gigabyte and a half of zeros in a few kilobytes.
	var bomb bytes.Buffer
	w, err := zstd.NewWriter(&bomb)
	must(t, err)
	_, err = io.CopyN(w, zeros{}, 3<<29)
	must(t, err)
	must(t, w.Close())
	n, err := drain(t, &bomb, Limits{})
	if !errors.Is(err, ErrLimit) || n > 3<<29 {
		t.Errorf("bomb: %d bytes and %v, want ErrLimit", n, err)
	}
	n, err = drain(t, io.LimitReader(zeros{}, 3<<29), Limits{MaxBytes: 1})
	if !errors.Is(err, ErrLimit) {
		t.Errorf("over MaxBytes: %d bytes and %v, want ErrLimit", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Decompress(ctx, bytes.NewReader(whole), Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func drain(t *testing.T, r io.Reader, lim Limits) (int64, error) {
	z, err := Decompress(t.Context(), r, lim)
	if err != nil {
		return 0, err
	}
	defer z.Close()
	return io.Copy(io.Discard, z)
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// BenchmarkLayer unpacks a layer of 5000 files of 8 KiB in 200 directories.
func BenchmarkLayer(b *testing.B) {
	var items []item
	body := strings.Repeat("0123456789abcdef", 512)
	for d := range 200 {
		name := "usr/share/dir" + string(rune('a'+d%26)) + string(rune('a'+d/26))
		items = append(items, dir(name))
		for f := range 25 {
			items = append(items, file(name+"/file"+string(rune('a'+f)), body))
		}
	}
	data := archive(b, items...)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		root := filepath.Join(b.TempDir(), "fs")
		must(b, os.Mkdir(root, 0o755))
		if err := Layer(b.Context(), bytes.NewReader(data), Target{Dir: root}, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

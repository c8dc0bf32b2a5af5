package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/ctxio"
	"github.com/coracle-project/coracle/internal/freespace"
)

const (
	// part is how much of a blob is fetched at once; a slot of the registry is held meanwhile.
	part = 4 << 20
	// fillPause and fillPauseMax are how long is waited after an error, longer each time.
	fillPause    = time.Second
	fillPauseMax = 5 * time.Minute
	// minFree is left on the file system, as unpacking does.
	minFree = 128 << 20
)

// fillAll fetches what the blob's file lacks, and tries again for as long as the layer is shown: as
// soon as it is whole, nothing depends on the registry any more.
func (l *shown) fillAll(ctx context.Context) {
	defer close(l.whole)
	for pause := fillPause; ; pause = min(2*pause, fillPauseMax) {
		err := l.fill(ctx)
		if err == nil || ctx.Err() != nil {
			l.wrong = ctx.Err()
			return
		}
		if errors.Is(err, lazy.ErrInvalid) {
			l.wrong = err
			return // what coracled is told, and logs
		}
		l.log.Warn("lazy layer is not whole yet", "retry", pause, "err", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			l.wrong = ctx.Err()
			return
		}
	}
}

func (l *shown) fill(ctx context.Context) error {
	f := l.source.kept()
	if f == nil {
		return fmt.Errorf("%w: its blob is not kept any more", lazy.ErrInvalid)
	}
	for at := int64(0); at < l.Size; at += part {
		n := min(part, l.Size-at)
		if covered(f, at, n) {
			continue
		}
		if err := l.fillPart(ctx, f, at, n); err != nil {
			return err
		}
	}
	if err := l.verify(ctx, f); err == nil || !errors.Is(err, lazy.ErrInvalid) {
		return err
	}
	return l.fetchWhole(ctx, f)
}

func (l *shown) fillPart(ctx context.Context, f *os.File, at, n int64) error {
	if err := checkFree(f, n); err != nil {
		return err
	}
	repo, release, err := l.source.slot(ctx)
	if err != nil {
		return err
	}
	defer release()
	data, err := repo.Range(ctx, l.source.descriptor(), at, n, nil)
	if err != nil {
		l.source.forget(repo)
		return err
	}
	_, err = f.WriteAt(data, at)
	return err
}

func checkFree(f *os.File, n int64) error {
	left, err := freespace.Of(f)
	if err != nil {
		return err
	}
	return freespace.Keep(f.Name(), left, n, minFree)
}

// verify compares the whole file with the blob's digest.
func (l *shown) verify(ctx context.Context, f *os.File) error {
	h := l.Blob.Verifier()
	if _, err := io.Copy(h, ctxio.Reader(ctx, io.NewSectionReader(f, 0, l.Size))); err != nil {
		return err
	}
	if !h.Verified() {
		return fmt.Errorf("%w: what came is not blob %s", lazy.ErrInvalid, l.Blob)
	}
	return nil
}

// fetchWhole fetches the blob once more, in one piece, which tells the hosts that lie.
func (l *shown) fetchWhole(ctx context.Context, f *os.File) error {
	repo, release, err := l.source.slot(ctx)
	if err != nil {
		return err
	}
	defer release()
	for {
		before := repo.Honest()
		err := repo.Blob(ctx, l.source.descriptor(), arriving{f}, func(int64) {})
		if left := repo.Honest(); !errors.Is(err, registry.ErrInvalid) || left == 0 || left == before {
			return err
		}
	}
}

// arriving is a file that no one reads behind.
type arriving struct{ *os.File }

// Arrived implements registry.File.
func (arriving) Arrived(int64) {}

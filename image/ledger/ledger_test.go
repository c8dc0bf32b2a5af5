package ledger

import (
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
)

// Regression: a pull that ended wrote down what others had unpacked, too, and not synced yet.
// After a power cut and damage of the index such layers were believed.
func TestLedgerSavesWhatIsSynced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := Open(path, slog.New(slog.DiscardHandler))
	must(t, err)
	done, underWay := digest.FromString("done"), digest.FromString("under way")
	l.Learn(done, done)
	l.Learn(underWay, underWay)
	blobs := []digest.Digest{done}
	for range 2 {
		must(t, l.Save(slices.Values(blobs)))
		if got := l.Synced(); !maps.Equal(got, map[digest.Digest]bool{done: true}) {
			t.Errorf("synced: %v", got)
		}
		if !l.UnpacksTo(underWay, underWay) {
			t.Error("forgotten what was learnt")
		}
	}
	must(t, l.Close())
	l, err = Open(path, slog.New(slog.DiscardHandler))
	must(t, err)
	if !l.UnpacksTo(done, done) || l.UnpacksTo(underWay, underWay) {
		t.Errorf("read back: %v", l.layers)
	}
	// What cannot be written is not taken for written.
	l.Learn(underWay, underWay)
	must(t, l.Close())
	blobs[0] = underWay
	if err := l.Save(slices.Values(blobs)); err == nil {
		t.Error("saved to a closed file")
	}
	if l.Synced()[underWay] {
		t.Error("taken for synced")
	}
}

func TestLeasesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Ledger{leases: map[string]Lease{"a": {Until: time.Now().Add(time.Minute), Digests: []digest.Digest{"x"}}}}
		if keep, ended := l.Leased(time.Now()); !keep["x"] || len(ended) != 0 {
			t.Errorf("keep %v, ended %v", keep, ended)
		}
		time.Sleep(time.Minute)
		if keep, ended := l.Leased(time.Now()); keep["x"] || !slices.Equal(ended, []string{"a"}) {
			t.Errorf("a minute later: keep %v, ended %v", keep, ended)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

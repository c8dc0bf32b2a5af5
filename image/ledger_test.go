package image

import (
	"log/slog"
	"maps"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Regression: a pull that ended wrote down what others had unpacked, too, and not synced yet.
// After a power cut and damage of the index such layers were believed.
func TestLedgerSavesWhatIsSynced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := openLedger(path, slog.New(slog.DiscardHandler))
	must(t, err)
	done, underWay := digest.FromString("done"), digest.FromString("under way")
	l.learn(done, done)
	l.learn(underWay, underWay)
	image := named{content: &content{layers: []ocispec.Descriptor{{Digest: done}}}}
	for range 2 {
		must(t, l.save([]named{image}))
		if got := l.synced(); !maps.Equal(got, map[digest.Digest]bool{done: true}) {
			t.Errorf("synced: %v", got)
		}
		if !l.unpacksTo(underWay, underWay) {
			t.Error("forgotten what was learnt")
		}
	}
	must(t, l.close())
	l, err = openLedger(path, slog.New(slog.DiscardHandler))
	must(t, err)
	if !l.unpacksTo(done, done) || l.unpacksTo(underWay, underWay) {
		t.Errorf("read back: %v", l.layers)
	}
	// What cannot be written is not taken for written.
	l.learn(underWay, underWay)
	must(t, l.close())
	image.layers[0].Digest = underWay
	if err := l.save([]named{image}); err == nil {
		t.Error("saved to a closed file")
	}
	if l.synced()[underWay] {
		t.Error("taken for synced")
	}
}

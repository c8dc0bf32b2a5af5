package announce

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/nftable"
)

// A refusal that cannot be made is tried again after a pause, however often the addresses are
// looked at meanwhile, and the log says so once a minute.
func TestRefusalIsTriedAgain(t *testing.T) {
	log := &testkit.Log{}
	synctest.Test(t, func(t *testing.T) {
		tried := 0
		before := openTable
		openTable = func(string, nftable.Layout, *slog.Logger) (*nftable.Table, error) {
			tried++
			return nil, errors.New("no nftables")
		}
		defer func() { openTable = before }()
		a := New(sink, "", log.Logger(), nil)
		if next := a.refuse(t.Context()); next != again {
			t.Errorf("it is tried again after %v, want %v", next, again)
		}
		if next := a.refuse(t.Context()); next != again || tried != 1 {
			t.Errorf("it was tried %d times at once, and is again after %v", tried, next)
		}
		for range 10 { // in five minutes
			time.Sleep(again)
			a.refuse(t.Context())
			a.refuse(t.Context())
		}
		if tried != 11 {
			t.Errorf("it was tried %d times, want 11", tried)
		}
		if n := log.Count("silent, and not refused"); n < 3 || n > 5 {
			t.Errorf("the log says so %d times in five minutes", n)
		}
	})
}

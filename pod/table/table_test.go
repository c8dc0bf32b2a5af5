package table

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/record"
	"github.com/coracle-project/coracle/pod/reserve"
)

// boat is an object of a table.
type boat struct {
	Made   time.Time `json:"made"`
	State  string    `json:"state"`
	Hidden bool      `json:"hidden"`
}

// harbour is a table of boats, with their records in a directory.
type harbour struct {
	*Table[boat]
	t   *testing.T
	dir record.Dir[boat]
}

func newHarbour(t *testing.T) *harbour {
	return &harbour{
		Table: New("boat", func(b *boat) bool { return !b.Hidden }), t: t,
		dir: record.Dir[boat]{Path: t.TempDir(), Name: "boat.json", Version: 1},
	}
}

func (h *harbour) add(id string, b boat, changed func(before, after *boat)) *Entry[boat] {
	h.t.Helper()
	if changed == nil {
		changed = func(_, _ *boat) {}
	}
	e := NewEntry(id, h.dir, reserve.New(h.dir.Path, slog.New(slog.DiscardHandler)), b, changed)
	if err := h.dir.Make(id); err != nil {
		h.t.Fatal(err)
	}
	if holder, ok := h.Add(id, e); !ok {
		h.t.Fatalf("%s has the identity", holder)
	}
	return e
}

// The newest comes first, and the order of those made at the same time does not change.
func TestNewestFirst(t *testing.T) {
	h := newHarbour(t)
	at := func(seconds int64) boat { return boat{Made: time.Unix(seconds, 0)} }
	for id, b := range map[string]boat{"old": at(1), "b": at(2), "a": at(2), "new": at(3)} {
		b.State = id
		h.add(id, b, nil)
	}
	var order []string
	for _, v := range NewestFirst(h.Versions(func(*boat) bool { return true }),
		func(b *boat) (time.Time, string) { return b.Made, b.State }) {
		order = append(order, v.Record.State)
	}
	if want := []string{"new", "a", "b", "old"}; !slices.Equal(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
}

// A record is encoded once, however many lists have it, and again when it has changed.
func TestItemsAreEncodedOncePerState(t *testing.T) {
	h := newHarbour(t)
	first, second := h.add("first", boat{State: "made"}, nil), h.add("second", boat{State: "made"}, nil)
	var asked []string
	list := func(what string, fits func(*boat) bool, encoded int, want ...string) {
		t.Helper()
		asked = nil
		got, err := Items(h.Versions(fits), func(b *boat) ([]byte, error) {
			asked = append(asked, b.State)
			return []byte(b.State), nil
		})
		var texts []string
		for _, b := range got {
			texts = append(texts, string(b))
		}
		slices.Sort(texts)
		if err != nil || !slices.Equal(texts, want) || len(asked) != encoded {
			t.Errorf("%s: %q, %v, want %q; encoded %q, want %d", what, texts, err, want, asked, encoded)
		}
	}
	all := func(*boat) bool { return true }
	list("first list", all, 2, "made", "made")
	list("second list", all, 0, "made", "made")
	list("filtered", func(b *boat) bool { return b.State == "sunk" }, 0)
	if err := second.Update(func(b *boat) { b.State = "afloat" }); err != nil {
		t.Fatal(err)
	}
	list("one has changed", all, 1, "afloat", "made")
	h.Remove(first)
	list("one has gone", all, 0, "afloat")

	broken := errors.New("broken")
	third := h.add("third", boat{State: "third"}, nil)
	only := func(b *boat) bool { return b.State == "third" }
	if _, err := Items(h.Versions(only), func(*boat) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	list("after an error", only, 1, "third")
	if err := third.Erase(); err != nil {
		t.Error(err)
	}
	if err := third.Update(func(*boat) {}); !errors.Is(err, ErrGone) {
		t.Errorf("update of an erased record: %v", err)
	}
}

// Who is told of a change sees it, or something newer.
func TestChangeIsShownBeforeItIsTold(t *testing.T) {
	h := newHarbour(t)
	var e *Entry[boat]
	told := 0
	e = h.add("boat", boat{State: "made"}, func(before, after *boat) {
		if told++; before.State != "made" || after.State != "afloat" || e.Get().State != "afloat" {
			t.Errorf("told of %+v and %+v, shown is %+v", before, after, e.Get())
		}
	})
	if err := e.Update(func(b *boat) { b.State = "afloat" }); err != nil {
		t.Fatal(err)
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	// What could not be written is neither shown nor told.
	h.dir.Path += "/none"
	lost := NewEntry("lost", h.dir, reserve.New(h.dir.Path, slog.New(slog.DiscardHandler)), boat{State: "made"},
		func(_, _ *boat) { t.Error("told of what was not written") })
	if err := lost.Update(func(b *boat) { b.State = "afloat" }); err == nil || lost.Get().State != "made" {
		t.Errorf("shown %+v, %v", lost.Get(), err)
	}
}

func TestFind(t *testing.T) {
	h := newHarbour(t)
	one := h.add("abc", boat{}, nil)
	h.add("abd", boat{}, nil)
	h.add("axx", boat{Hidden: true}, nil)
	for id, want := range map[string]error{
		"": errdefs.ErrInvalid, "ab": errdefs.ErrInvalid, "b": errdefs.ErrNotFound, "axx": errdefs.ErrNotFound, "ax": errdefs.ErrNotFound,
	} {
		if _, err := h.Find(id); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", id, err, want)
		}
	}
	if e, err := h.Find("abc"); err != nil || e != one {
		t.Errorf("found %v, %v", e, err)
	}
	if h.Exact("axx") == nil || h.Exact("ab") != nil {
		t.Error("Exact finds hidden objects, and no prefixes")
	}
	// An identity is free again when it is released, while its object is still there.
	if holder, ok := h.Add("abc", NewEntry("next", h.dir, nil, boat{}, nil)); ok || holder != "abc" {
		t.Errorf("a taken identity: %q, %t", holder, ok)
	}
	h.Release(one)
	if _, ok := h.Add("abc", NewEntry("next", h.dir, nil, boat{}, nil)); !ok || h.Exact("abc") != one {
		t.Error("the identity is not free, or its object is gone")
	}
}

package linear

import (
	"strings"
	"testing"
	"time"
)

// step is a request with its answer, between two moments.
type step struct {
	from, to time.Duration
	Request
	Answer
}

func done(from, to time.Duration, r Request) step { return step{from, to, r, Answer{Outcome: Done}} }

func read(from, to time.Duration, value string) step {
	if value == "" {
		return step{from, to, Request{Kind: Get}, Answer{Outcome: Missing}}
	}
	return step{from, to, Request{Kind: Get}, Answer{Done, value}}
}

// The checker is worth something only if it finds what must not happen.
func TestCheck(t *testing.T) {
	create := func(v string) Request { return Request{Kind: Create, Value: v} }
	swap := func(from, to string) Request { return Request{Kind: Update, Expect: from, Value: to} }
	remove := Request{Kind: Delete}
	unknown := func(from, to time.Duration, r Request) step { return step{from, to, r, Answer{Outcome: Unknown}} }
	for name, c := range map[string]struct {
		steps []step
		ok    bool
	}{
		"one after the other": {[]step{
			read(0, 1, ""), done(2, 3, create("a")), read(4, 5, "a"), done(6, 7, swap("a", "b")),
			read(8, 9, "b"), done(10, 11, remove), read(12, 13, ""),
		}, true},
		"at the same time": {[]step{done(0, 9, create("a")), read(1, 2, ""), read(3, 4, "a")}, true},
		"refused": {[]step{
			done(0, 1, create("a")), {2, 3, create("b"), Answer{Outcome: Exists}}, {4, 5, swap("c", "d"), Answer{Outcome: Conflict}},
		}, true},
		"a lost write":                   {[]step{done(0, 1, create("a")), read(2, 3, "")}, false},
		"a lost update":                  {[]step{done(0, 1, create("a")), done(2, 3, swap("a", "b")), read(4, 5, "a")}, false},
		"a stale read":                   {[]step{done(0, 9, create("a")), read(1, 2, "a"), read(3, 4, "")}, false},
		"two updates of one version":     {[]step{done(0, 1, create("a")), done(2, 9, swap("a", "b")), done(2, 9, swap("a", "c"))}, false},
		"two creations":                  {[]step{done(0, 9, create("a")), done(0, 9, create("b"))}, false},
		"a deleted object comes back":    {[]step{done(0, 1, create("a")), done(2, 3, remove), read(4, 5, "a")}, false},
		"a value that no one wrote":      {[]step{done(0, 1, create("a")), read(2, 3, "b")}, false},
		"a conflict without a change":    {[]step{done(0, 1, create("a")), {2, 3, swap("a", "b"), Answer{Outcome: Conflict}}}, false},
		"unknown, and it took effect":    {[]step{unknown(0, 1, create("a")), read(2, 3, ""), read(4, 5, "a")}, true},
		"unknown, and it did not":        {[]step{unknown(0, 1, create("a")), read(2, 3, ""), done(4, 5, create("b")), read(6, 7, "b")}, true},
		"unknown, and it is seen before": {[]step{read(0, 1, "a"), unknown(2, 3, create("a"))}, false},
		"unknown, and it came and went":  {[]step{unknown(0, 1, create("a")), read(2, 3, "a"), read(4, 5, "")}, false},
		"not sent": {[]step{
			{0, 1, create("a"), Answer{Outcome: NotSent}}, read(2, 3, "a"),
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			for client, s := range c.steps {
				s.Key = "key"
				h.add(client, s.Request, s.Answer, s.from, s.to)
			}
			other := Request{Kind: Create, Key: "another", Value: "a"}
			h.Do(0, other, func() Answer { return Answer{Outcome: Done} })
			err := h.Check(time.Minute)
			if (err == nil) != c.ok {
				t.Error(err)
			}
			if err != nil && !strings.Contains(err.Error(), "what clients saw of key is not linearizable") {
				t.Error(err)
			}
		})
	}
}

// Regression: a key was taken for one that cannot go, and its loss was linearizable.
func TestMaybeDeleted(t *testing.T) {
	h := New()
	for key, outcome := range map[string]Outcome{"gone": Done, "maybe": Unknown, "there": NotSent} {
		h.Do(0, Request{Kind: Create, Key: key, Value: "a"}, func() Answer { return Answer{Outcome: Done} })
		h.Do(0, Request{Kind: Delete, Key: key}, func() Answer { return Answer{Outcome: outcome} })
	}
	h.Do(0, Request{Kind: Create, Key: "created", Value: "a"}, func() Answer { return Answer{Outcome: Unknown} })
	for _, key := range h.Keys() {
		if got := h.MaybeDeleted(key); got != (key == "maybe") {
			t.Errorf("key %s may be deleted: %t", key, got)
		}
	}
	h.Do(1, Request{Kind: Get, Key: "maybe"}, func() Answer { return Answer{Outcome: Missing} })
	if err := h.Check(time.Minute); err != nil {
		t.Error(err)
	}
}

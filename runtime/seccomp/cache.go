package seccomp

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// cacheSize is how many programs a Cache keeps: some 2 kB each for the default profile,
// at most 32 kB.
const cacheSize = 32

// Cache keeps the programs of the profiles used last, because nearly all containers of a
// node have the same one. The zero value is ready; all methods may be called concurrently.
type Cache struct {
	mu    sync.Mutex
	byKey map[[sha256.Size]byte]*list.Element
	used  list.List // of *entry, last used first
}

type entry struct {
	key     [sha256.Size]byte
	compile func() (*Filter, error) // once
}

// Compile is the package's Compile, or its earlier result for an equal profile. Callers
// that come while an equal profile is being compiled wait for it.
func (c *Cache) Compile(profile *specs.LinuxSeccomp) (*Filter, error) {
	e := c.entry(profile)
	f, err := e.compile()
	if err != nil {
		c.forget(e)
	}
	return f, err
}

func (c *Cache) entry(profile *specs.LinuxSeccomp) *entry {
	key := digest(profile)
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.byKey[key]; ok {
		c.used.MoveToFront(at)
		return at.Value.(*entry)
	}
	if c.byKey == nil {
		c.byKey = map[[sha256.Size]byte]*list.Element{}
	}
	for c.used.Len() >= cacheSize {
		c.removeLocked(c.used.Back())
	}
	e := &entry{key: key, compile: sync.OnceValues(func() (*Filter, error) { return Compile(profile) })}
	c.byKey[key] = c.used.PushFront(e)
	return e
}

// forget removes an entry that is an error: there is no end of wrong profiles.
func (c *Cache) forget(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.byKey[e.key]; ok && at.Value.(*entry) == e {
		c.removeLocked(at)
	}
}

func (c *Cache) removeLocked(at *list.Element) {
	delete(c.byKey, at.Value.(*entry).key)
	c.used.Remove(at)
}

// digest is of all that Compile reads, each part with its length before it. JSON will not
// do: it has no flags and an empty list of flags alike.
func digest(p *specs.LinuxSeccomp) [sha256.Size]byte {
	if p == nil {
		return [sha256.Size]byte{}
	}
	b := make([]byte, 0, 16<<10)
	number := func(n uint64) { b = binary.AppendUvarint(b, n) }
	text := func(s string) { number(uint64(len(s))); b = append(b, s...) }
	optional := func(n *uint) {
		if n == nil {
			number(0)
		} else {
			number(1)
			number(uint64(*n))
		}
	}
	text(string(p.DefaultAction))
	optional(p.DefaultErrnoRet)
	number(uint64(len(p.Architectures)))
	for _, a := range p.Architectures {
		text(string(a))
	}
	if p.Flags == nil {
		number(0)
	} else {
		number(uint64(len(p.Flags)) + 1)
	}
	for _, f := range p.Flags {
		text(string(f))
	}
	text(p.ListenerPath)
	text(p.ListenerMetadata)
	number(uint64(len(p.Syscalls)))
	for i := range p.Syscalls {
		s := &p.Syscalls[i]
		number(uint64(len(s.Names)))
		for _, name := range s.Names {
			text(name)
		}
		text(string(s.Action))
		optional(s.ErrnoRet)
		number(uint64(len(s.Args)))
		for _, a := range s.Args {
			number(uint64(a.Index))
			number(a.Value)
			number(a.ValueTwo)
			text(string(a.Op))
		}
	}
	return sha256.Sum256(b)
}

package shim

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/coracle-project/coracle/internal/kernfile"
	"github.com/coracle-project/coracle/runtime"
)

// oomKills knows which containers the kernel has killed processes of for want of memory. Their
// cgroups count that, but systemd removes a scope's as soon as its last process is gone, which may
// be before we look. No notification would do instead: those of memory.events come up to 10 ms
// late (cgroup_file_notify, Linux 4.18), and not at all once the cgroup is removed.
//
// The cgroup above has counted, too, before the killed process got its signal (Linux 5.2;
// memcg_memory_event, __oom_kill_process), and stays. A container whose own cgroup is gone has had
// the kills that are none of the other containers below that one. What all of these have counted is
// therefore taken off, at the beginning of a container and at its end, and what one that ends in
// between has had is added to its beginning (record.OOMBefore).
type oomKills struct {
	mu     sync.Mutex
	living map[*container]struct{} // those of scopes below a cgroup that counts
}

// begin notes how many kills were none of the container's, before its program starts.
func (o *oomKills) begin(c *container) {
	above := c.cgroupAbove()
	if above == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	others := o.othersLocked(c, above)
	all, err := countOOMKills(above)
	if err != nil {
		return // it is the root, which does not count, or one of version 1
	}
	before := all - others
	c.mu.Lock()
	c.rec.OOMBefore = &before // written with the rest of what the creation has made
	c.mu.Unlock()
	o.addLocked(c)
}

// goOn is begin for a container that an earlier shim has begun.
func (o *oomKills) goOn(c *container) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.record().OOMBefore != nil {
		o.addLocked(c)
	}
}

func (o *oomKills) addLocked(c *container) {
	if o.living == nil {
		o.living = make(map[*container]struct{})
	}
	o.living[c] = struct{}{}
}

// end says whether that is why a container's init has ended, with this code.
func (o *oomKills) end(c *container, code int32) bool {
	counted := c.record().OOMBefore != nil
	if !counted && code == 0 {
		return false
	}
	n, err := c.oomKills()
	if !counted {
		return err == nil && n > 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.living, c)
	above := c.cgroupAbove()
	if err != nil {
		all, err := countOOMKills(above)
		if err != nil {
			return false // the cgroup above is gone, too: the pod is being removed
		}
		n = all - o.othersLocked(c, above) - *c.record().OOMBefore // as of now: others may just have ended
	}
	if n > 0 {
		o.explainLocked(above, n)
	}
	return code != 0 && n > 0
}

// explainLocked makes the running containers below a cgroup ignore OOM kills of other cgroups.
func (o *oomKills) explainLocked(above string, n int64) {
	for other := range o.living {
		if other.cgroupAbove() != above {
			continue
		}
		if err := other.update(func(r *record) { later := *r.OOMBefore + n; r.OOMBefore = &later }); err != nil {
			other.log.Error("cannot record whose the kills for memory were", "err", err)
		}
	}
}

// forget is for a container that was not made after all.
func (o *oomKills) forget(c *container) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.living, c)
}

// othersLocked is what the other living containers below a cgroup have counted.
func (o *oomKills) othersLocked(c *container, above string) (sum int64) {
	for other := range o.living {
		if other != c && other.cgroupAbove() == above {
			n, _ := other.oomKills() // one whose cgroup is gone asks for itself
			sum += n
		}
	}
	return sum
}

// oomKills is what the container's own cgroup has counted.
func (c *container) oomKills() (int64, error) {
	engine, err := c.alive()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if counter, ok := engine.(runtime.OOMCounter); ok {
		n, err := counter.OOMKills(ctx)
		return int64(n), err
	}
	st, err := engine.Stats(ctx)
	return int64(st.OOMKills), err
}

// cgroupAbove is the directory of the cgroup above the container's, if systemd has made that, on
// the unified hierarchy.
func (c *container) cgroupAbove() string {
	holder, ok := c.engine.(runtime.CgroupHolder)
	if !ok || !c.rec.SystemdCgroup {
		return ""
	}
	if path := holder.CgroupPaths()[""]; path != "" {
		return filepath.Dir(path)
	}
	return ""
}

// countOOMKills reads memory.events of a cgroup.
func countOOMKills(dir string) (int64, error) {
	path := filepath.Join(dir, "memory.events")
	b, err := kernfile.Read(path)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if n, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			return strconv.ParseInt(string(bytes.TrimSpace(n)), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no oom_kill", path)
}

package client

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coracle-project/coracle/shim/keeper"
)

// condition is what is known about a shim without asking it.
type condition struct {
	mu      sync.Mutex
	isReady bool      // connected, and READY has come
	since   time.Time // of isReady
	missed  int       // consecutive pings without an answer
	cause   error     // why the last attempt to reach or replace the shim failed
	now     keeper.Status
	words   string    // the last line of the log of a shim that has ended for good
	window  time.Time // when the counting of starts began
	counted int       // starts at that time
	looping time.Time // end of the time in which a restart loop is reported
}

// Shim describes the state of a shim.
type Shim struct {
	Name   string `json:"name"` // "node", or the pod's id
	PID    int    `json:"pid"`
	Starts int    `json:"starts"` // by the current keeper
	// LastExit says how the previous process ended; empty if none has.
	LastExit string `json:"lastExit,omitempty"`
	Problem  string `json:"problem,omitempty"` // why it is unavailable
}

// Health returns nil if containers can be started, else the reason. It returns at once, from what
// is known. With one shim per pod, a fault of one pod is not a fault of the node.
func (c *Client) Health() error {
	c.mu.Lock()
	l := c.links[nodeShim]
	c.mu.Unlock()
	if l == nil || c.cfg.Scope != ScopeNode {
		return nil
	}
	return l.health()
}

// Shims describes all shims, from what is known without asking them.
func (c *Client) Shims() []Shim {
	var all []Shim
	for _, l := range c.all() {
		all = append(all, l.shim())
	}
	return all
}

func (l *link) shim() Shim {
	err := l.health()
	l.cond.mu.Lock()
	defer l.cond.mu.Unlock()
	s := Shim{Name: l.name, PID: l.cond.now.PID, Starts: l.cond.now.Starts, LastExit: lastExit(l.cond.now)}
	if err != nil {
		s.Problem = err.Error()
	}
	return s
}

// health returns why the shim is unavailable.
func (l *link) health() error {
	a := &l.cond
	a.mu.Lock()
	defer a.mu.Unlock()
	switch now := time.Now(); {
	case a.now.State == keeper.Stayed:
		return fmt.Errorf("shim %s: ended for good with %s: %s (%s)", l.name, lastExit(a.now), a.words, l.logPath())
	case a.missed >= l.limits.unready:
		return fmt.Errorf("shim %s: process %d has not answered %d pings", l.name, a.now.PID, a.missed)
	case now.Before(a.looping):
		return fmt.Errorf("shim %s: keeps ending, last with %s (%s)", l.name, lastExit(a.now), l.logPath())
	case !a.isReady && now.Sub(a.since) >= l.limits.absent:
		err := fmt.Errorf("shim %s: unreachable for %s", l.name, now.Sub(a.since).Truncate(time.Second))
		if a.cause != nil {
			err = fmt.Errorf("%w: %w", err, a.cause)
		}
		return err
	}
	return nil
}

// gone returns why the shim will not be restarted automatically.
func (l *link) gone() error {
	l.cond.mu.Lock()
	stayed := l.cond.now.State == keeper.Stayed
	l.cond.mu.Unlock()
	if !stayed {
		return nil
	}
	return l.health()
}

func (l *link) ready() bool {
	l.cond.mu.Lock()
	defer l.cond.mu.Unlock()
	return l.cond.isReady
}

// pid is the shim's process as last reported by the keeper; 0 for none.
func (l *link) pid() int {
	l.cond.mu.Lock()
	defer l.cond.mu.Unlock()
	return l.cond.now.PID
}

func (l *link) setReady(is bool) {
	l.cond.mu.Lock()
	defer l.cond.mu.Unlock()
	if l.cond.isReady != is {
		l.cond.isReady, l.cond.since = is, time.Now()
	}
	if is {
		l.cond.cause = nil
	}
}

// silent records how many pings have not been answered.
func (l *link) silent(missed int) {
	l.cond.mu.Lock()
	defer l.cond.mu.Unlock()
	l.cond.missed = missed
}

// failed records why the shim could not be reached or replaced.
func (l *link) failed(err error) {
	l.cond.mu.Lock()
	defer l.cond.mu.Unlock()
	l.cond.cause = err
}

// observe asks the keeper about a shim. other reports whether the process has changed or ended:
// what was known about the previous one no longer holds.
func (c *Client) observe(l *link) (other bool) {
	k := c.keeper.get()
	if k == nil {
		return false
	}
	s, err := k.Status(l.program())
	if err != nil {
		return false // watchKeeper takes care of the keeper
	}
	words := ""
	if s.State == keeper.Stayed {
		words = lastLine(l.logPath())
	}
	other, news := l.note(s, words)
	switch news {
	case restarted:
		l.log.Warn("shim was restarted", "pid", s.PID, "starts", s.Starts, "last", lastExit(s))
	case looping:
		l.log.Warn("shim keeps ending", "starts", s.Starts, "last", lastExit(s), "log", l.logPath())
	}
	return other
}

// news is a change worth logging.
type news int

const (
	none      news = iota
	restarted      // once or a few times
	looping        // more often; reported once per loop
)

// note stores the keeper's status.
func (l *link) note(s keeper.Status, words string) (other bool, n news) {
	a := &l.cond
	a.mu.Lock()
	defer a.mu.Unlock()
	now, before := time.Now(), a.now
	other = s.State != keeper.Running || s.PID != before.PID
	a.now, a.words = s, words
	if a.window.IsZero() || s.Starts < before.Starts { // first status, or a new keeper
		a.window, a.counted = now, s.Starts
		return other, none
	}
	if now.Sub(a.window) > l.limits.window {
		a.window, a.counted = now, before.Starts
	}
	switch {
	case s.Starts == before.Starts:
		return other, none
	case s.Starts-a.counted <= l.limits.starts:
		return other, restarted
	}
	if !now.Before(a.looping) {
		n = looping
	}
	a.looping = now.Add(l.limits.window / 2)
	return other, n
}

func lastExit(s keeper.Status) string {
	switch {
	case s.Ends == 0:
		return ""
	case !s.ExitKnown:
		return "unknown status"
	case s.Exit.Signaled():
		return "signal " + s.Exit.Signal().String()
	}
	return fmt.Sprintf("exit status %d", s.Exit.ExitStatus())
}

// maxLine limits a line of a shim's log in a message.
const maxLine = 512

// lastLine is the last line of a file, or the error that prevents reading it.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	b := make([]byte, min(st.Size(), maxLine))
	n, err := f.ReadAt(b, st.Size()-int64(len(b)))
	if err != nil && !errors.Is(err, io.EOF) {
		return err.Error()
	}
	text := strings.TrimSpace(string(b[:n]))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

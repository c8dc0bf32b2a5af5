package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// progress shows how far long work is: a bar that is drawn again and again on a
// terminal, with one more for each part, and a line now and then elsewhere, with bytes and rate.
type progress struct {
	out    io.Writer
	what   string
	width  int // columns of the terminal; 0: none
	height int // lines
	began  time.Time

	shown       time.Time
	done, total int64
	parts       []part // work that has a line of its own, on a terminal
	drawn       int    // lines
}

// part is a piece of the work.
type part struct {
	name        string
	began       time.Time // when its first byte came
	done, total int64
	complete    bool
}

const (
	redraw    = 100 * time.Millisecond // on a terminal
	lineEvery = 5 * time.Second        // elsewhere
)

func newProgress(out io.Writer, what string) *progress {
	p := &progress{out: out, what: what, began: time.Now()}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			p.width, p.height = max(int(size.Col), 40), max(int(size.Row), 2)
		}
	}
	p.shown = p.began
	return p
}

// at tells how many bytes of how many are done; total 0 is not known.
func (p *progress) at(done, total int64) {
	p.done, p.total = done, total
	every := lineEvery
	if p.width > 0 {
		every = redraw
	}
	if now := time.Now(); now.Sub(p.shown) >= every {
		p.shown = now
		p.show()
	}
}

// add is at for those who know only what came just now.
func (p *progress) add(n int) { p.at(p.done+int64(n), p.total) }

// note prints something that stays.
func (p *progress) note(text string) {
	p.clear()
	_, _ = fmt.Fprintf(p.out, "%s: %s\n", p.what, text)
}

// end says that the work is done.
func (p *progress) end() {
	p.clear()
	_, _ = fmt.Fprintf(p.out, "%s: %s\n", p.what, p.amount())
}

// abort leaves the terminal clean for an error.
func (p *progress) abort() { p.clear() }

func (p *progress) clear() {
	if p.drawn == 0 {
		return
	}
	up := ""
	if p.drawn > 1 {
		up = fmt.Sprintf("\x1b[%dA", p.drawn-1)
	}
	_, _ = io.WriteString(p.out, "\r"+up+"\x1b[J")
	p.drawn = 0
}

// show draws a line for all, and above it one for each part for which there is room.
func (p *progress) show() {
	if p.width == 0 {
		_, _ = fmt.Fprintf(p.out, "%s: %s\n", p.what, p.amount())
		return
	}
	p.clear()
	lines := append(p.partLines(), p.line(p.what, p.done, p.total, p.amount()))
	_, _ = io.WriteString(p.out, strings.Join(lines, "\n"))
	p.drawn = len(lines)
}

// partLines are those of the parts, or only of those that are not complete if there are more
// than the terminal has lines.
func (p *progress) partLines() (lines []string) {
	all := p.parts
	if len(all) >= p.height {
		all = slices.DeleteFunc(slices.Clone(all), func(x part) bool { return x.complete })
	}
	for _, x := range all[:min(len(all), max(p.height-1, 0))] {
		state := amount(x.done, x.total, time.Since(x.began))
		switch {
		case x.complete:
			state = human(x.total) + ", done"
		case x.done == 0:
			state = human(x.total) + ", waiting"
		case x.done >= x.total:
			state = human(x.total) + ", unpacking"
		}
		lines = append(lines, p.line(x.name, x.done, x.total, state))
	}
	return lines
}

// line is a name, a bar if there is room for one, and words.
func (p *progress) line(name string, done, total int64, words string) string {
	left, right := name+" ", " "+words
	bar := ""
	if room := min(p.width-len(left)-len(right)-3, 40); total > 0 && room > 5 {
		full := int(int64(room) * min(done, total) / total)
		bar = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "]"
	}
	text := left + bar + right
	return text[:min(len(text), p.width-1)]
}

// part tells how far a piece of the work is; it is shown with the next at. The first of its
// place makes it, and those before it.
func (p *progress) part(place int, x part) {
	for len(p.parts) <= place {
		p.parts = append(p.parts, part{})
	}
	x.began = p.parts[place].began
	if x.began.IsZero() && x.done > 0 {
		x.began = time.Now()
	}
	p.parts[place] = x
}

// count shows on a terminal what is being done just now, and nothing elsewhere.
type count struct {
	progress
	done int
}

func newCount(out io.Writer, what string) *count { return &count{progress: *newProgress(out, what)} }

func (c *count) next(what string) {
	c.done++
	if now := time.Now(); c.width > 0 && now.Sub(c.shown) >= redraw {
		c.shown = now
		c.clear()
		text := fmt.Sprintf("%s: %d, %s", c.what, c.done, what)
		_, _ = io.WriteString(c.out, text[:min(len(text), c.width-1)])
		c.drawn = 1
	}
}

// amount is bytes and rate in words.
func (p *progress) amount() string { return amount(p.done, p.total, time.Since(p.began)) }

func amount(done, total int64, took time.Duration) string {
	s := human(done)
	if total > 0 && total != done {
		s += " of " + human(total)
	}
	if took > 0 {
		s += fmt.Sprintf(", %s/s", human(int64(float64(done)/took.Seconds())))
	}
	return s
}

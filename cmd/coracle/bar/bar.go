// Package bar shows the progress of long work.
package bar

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// Progress shows the progress of long work in bytes, with the rate. On a terminal it redraws a bar,
// and one for each part. Elsewhere it prints a line now and then.
type Progress struct {
	out    io.Writer
	what   string
	width  int // columns of the terminal; 0: none
	height int // lines
	began  time.Time

	shown       time.Time
	done, total int64
	parts       []Part // each has a line of its own on a terminal
	drawn       int    // lines
}

// Part is a piece of the work.
type Part struct {
	Name        string
	began       time.Time // when its first byte came
	Done, Total int64
	Complete    bool
}

const (
	redraw    = 100 * time.Millisecond // on a terminal
	lineEvery = 5 * time.Second        // elsewhere
)

// New returns the progress of work of this name.
func New(out io.Writer, what string) *Progress {
	p := &Progress{out: out, what: what, began: time.Now()}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			p.width, p.height = max(int(size.Col), 40), max(int(size.Row), 2)
		}
	}
	p.shown = p.began
	return p
}

// At sets how many bytes are done, and of how many: 0 if that is unknown.
func (p *Progress) At(done, total int64) {
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

// Total sets how many bytes there are.
func (p *Progress) Total(total int64) { p.total = total }

// Add adds bytes that were done just now.
func (p *Progress) Add(n int) { p.At(p.done+int64(n), p.total) }

// Note prints a line that stays.
func (p *Progress) Note(text string) {
	p.clear()
	_, _ = fmt.Fprintf(p.out, "%s: %s\n", p.what, text)
}

// End says that the work is done.
func (p *Progress) End() {
	p.clear()
	_, _ = fmt.Fprintf(p.out, "%s: %s\n", p.what, p.amount())
}

// Abort leaves the terminal clean for an error.
func (p *Progress) Abort() { p.clear() }

func (p *Progress) clear() {
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

// show draws a line for the whole work, and above it one for each part while there is room.
func (p *Progress) show() {
	if p.width == 0 {
		_, _ = fmt.Fprintf(p.out, "%s: %s\n", p.what, p.amount())
		return
	}
	p.clear()
	lines := append(p.partLines(), p.line(p.what, p.done, p.total, p.amount()))
	_, _ = io.WriteString(p.out, strings.Join(lines, "\n"))
	p.drawn = len(lines)
}

// partLines returns the lines of the parts, without those that are complete if the terminal has too
// few lines for all.
func (p *Progress) partLines() (lines []string) {
	all := p.parts
	if len(all) >= p.height {
		all = slices.DeleteFunc(slices.Clone(all), func(x Part) bool { return x.Complete })
	}
	for _, x := range all[:min(len(all), max(p.height-1, 0))] {
		state := amount(x.Done, x.Total, time.Since(x.began))
		switch {
		case x.Complete:
			state = output.Size(x.Total) + ", done"
		case x.Done == 0:
			state = output.Size(x.Total) + ", waiting"
		case x.Done >= x.Total:
			state = output.Size(x.Total) + ", unpacking"
		}
		lines = append(lines, p.line(x.Name, x.Done, x.Total, state))
	}
	return lines
}

// line returns a name, a bar if there is room for one, and words.
func (p *Progress) line(name string, done, total int64, words string) string {
	left, right := name+" ", " "+words
	bar := ""
	if room := min(p.width-len(left)-len(right)-3, 40); total > 0 && room > 5 {
		full := int(int64(room) * min(done, total) / total)
		bar = "[" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "]"
	}
	text := left + bar + right
	return text[:min(len(text), p.width-1)]
}

// Part sets the progress of a part; the next At shows it. place is its line, from 0.
func (p *Progress) Part(place int, x Part) {
	for len(p.parts) <= place {
		p.parts = append(p.parts, Part{})
	}
	x.began = p.parts[place].began
	if x.began.IsZero() && x.Done > 0 {
		x.began = time.Now()
	}
	p.parts[place] = x
}

// Count shows what is being done, with a number, on a terminal. Elsewhere it shows nothing.
type Count struct {
	Progress
	done int
}

// NewCount returns a Count for work of this name.
func NewCount(out io.Writer, what string) *Count { return &Count{Progress: *New(out, what)} }

// Next counts one more, and shows it.
func (c *Count) Next(what string) {
	c.done++
	if now := time.Now(); c.width > 0 && now.Sub(c.shown) >= redraw {
		c.shown = now
		c.clear()
		text := fmt.Sprintf("%s: %d, %s", c.what, c.done, what)
		_, _ = io.WriteString(c.out, text[:min(len(text), c.width-1)])
		c.drawn = 1
	}
}

// amount returns bytes and rate in words.
func (p *Progress) amount() string { return amount(p.done, p.total, time.Since(p.began)) }

func amount(done, total int64, took time.Duration) string {
	s := output.Size(done)
	if total > 0 && total != done {
		s += " of " + output.Size(total)
	}
	if took > 0 {
		s += fmt.Sprintf(", %s/s", output.Size(int64(float64(done)/took.Seconds())))
	}
	return s
}

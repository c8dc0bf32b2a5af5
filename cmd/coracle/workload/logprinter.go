package workload

import (
	"bufio"
	"errors"
	"io"
	"time"

	"github.com/coracle-project/coracle/internal/crilog"
)

// logPrinter writes records as the container wrote them, each stream to its place and, where
// these are one terminal, in the order of the log.
type logPrinter struct {
	timestamps bool
	out        map[crilog.Stream]*bufio.Writer
	inLine     map[crilog.Stream]bool // the stream's last record was not the end of a line
	last       crilog.Stream
}

func newLogPrinter(stdout, stderr io.Writer, timestamps bool) *logPrinter {
	return &logPrinter{
		timestamps: timestamps,
		out:        map[crilog.Stream]*bufio.Writer{crilog.Stdout: bufio.NewWriter(stdout), crilog.Stderr: bufio.NewWriter(stderr)},
		inLine:     map[crilog.Stream]bool{},
		last:       crilog.Stdout,
	}
}

func (p *logPrinter) print(l crilog.Line) error {
	if l.Stream != p.last {
		if err := p.out[p.last].Flush(); err != nil {
			return err
		}
		p.last = l.Stream
	}
	w := p.out[l.Stream]
	if p.timestamps && !p.inLine[l.Stream] {
		_, _ = w.WriteString(l.Time.Format(time.RFC3339Nano) + " ")
	}
	p.inLine[l.Stream] = l.Partial
	_, err := w.Write(l.Text) // keeps the errors of the writes before it
	if !l.Partial {
		err = w.WriteByte('\n')
	}
	return err
}

func (p *logPrinter) flush() error {
	return errors.Join(p.out[crilog.Stdout].Flush(), p.out[crilog.Stderr].Flush())
}

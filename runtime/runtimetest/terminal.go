package runtimetest

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// read takes all a terminal's processes write. The master's end is EIO, not EOF.
func readTerminal(r *rig, master *os.File) string {
	r.Helper()
	r.must(master.SetReadDeadline(time.Now().Add(patience)))
	data, err := io.ReadAll(master)
	if err != nil && !errors.Is(err, unix.EIO) {
		r.Fatal(err)
	}
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\r", ""))
}

var terminalTests = map[string]func(*rig){
	"terminal of init": func(r *rig) {
		spec := r.spec("tty; stty size")
		spec.Process.Terminal = true
		spec.Process.ConsoleSize = &specs.Box{Height: 33, Width: 111}
		pair, err := runtime.NewConsolePair()
		r.must(err)
		defer pair.Close()
		c := r.create(spec, runtime.Stdio{Console: pair.EngineEnd()})
		pid := c.Pid()
		master, err := pair.Receive(r.Context())
		r.must(err)
		defer master.Close()
		r.must(c.Start(r.Context()))
		text := readTerminal(r, master)
		r.wait(pid)
		if text != "/dev/pts/0\n33 111" && text != "/dev/console\n33 111" {
			r.Errorf("the terminal says %q", text)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"terminal of an exec": func(r *rig) {
		c, pid := r.running()
		pair, err := runtime.NewConsolePair()
		r.must(err)
		defer pair.Close()
		p := process("stty size; read line; echo got $line")
		p.Terminal = true
		p.ConsoleSize = &specs.Box{Height: 5, Width: 50}
		child, err := c.Exec(r.Context(), p, runtime.ExecOptions{Stdio: runtime.Stdio{Console: pair.EngineEnd()}})
		r.must(err)
		master, err := pair.Receive(r.Context())
		r.must(err)
		defer master.Close()
		_, err = master.WriteString("abc\n")
		r.must(err)
		text := readTerminal(r, master)
		r.wait(child)
		if !strings.Contains(text, "5 50") || !strings.Contains(text, "got abc") {
			r.Errorf("the terminal says %q", text)
		}
		r.end(c, pid)
	},

	"a terminal needs a console socket": func(r *rig) {
		spec := r.spec("true")
		spec.Process.Terminal = true
		_, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
		if err == nil {
			r.Fatal("create succeeded")
		}
	},

	"receive ends with the context": func(r *rig) {
		pair, err := runtime.NewConsolePair()
		r.must(err)
		defer pair.Close()
		keep, err := unix.Dup(int(pair.EngineEnd().Fd()))
		r.must(err)
		defer unix.Close(keep)
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		_, err = pair.Receive(ctx)
		r.wantErr(err, context.Canceled)
	},

	"receive ends when no one can send any more": func(r *rig) {
		pair, err := runtime.NewConsolePair()
		r.must(err)
		defer pair.Close()
		_, err = pair.Receive(r.Context())
		r.wantErr(err, os.ErrClosed)
	},
}

//go:build ha

package controlplanes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tenMinutes is how long the page may take from one machine to three control-plane nodes.
const tenMinutes = 10 * time.Minute

var (
	exampleFor = regexp.MustCompile(`^# on ([a-z]+(?: and [a-z]+)*)(?:, with ([a-z]+(?: and [a-z]+)*) gone)?$`)
	printsLine = regexp.MustCompile(`^# prints( within a minute)?: (.+)$`)
	// placeholder is a word that an earlier command has printed.
	placeholder = regexp.MustCompile(`\b[A-Z]{2,}\b`)
)

// example is an indented block of a page.
type example struct {
	line  int      // the number of its first line
	on    []string // machines
	gone  []string // machines that do not run meanwhile
	steps []step
}

// step is a command, and what the page says that it prints.
type step struct {
	command string
	prints  []string
	// later is whether it may print that only after a while, when it is typed again.
	later bool
}

// examplesOf returns the examples of a page, in its order.
func examplesOf(page string) (all []example, err error) {
	inside := false
	for i, text := range strings.Split(page, "\n") {
		text, indented := strings.CutPrefix(text, "    ")
		if !indented {
			inside = false
			continue
		}
		if !inside {
			inside = true
			m := exampleFor.FindStringSubmatch(text)
			if m == nil {
				return nil, fmt.Errorf("line %d: %q is not '# on MACHINE': where is the example to be typed?", i+1, text)
			}
			all = append(all, example{line: i + 1, on: split(m[1]), gone: split(m[2])})
			continue
		}
		e := &all[len(all)-1]
		if m := printsLine.FindStringSubmatch(text); m != nil && len(e.steps) > 0 {
			last := &e.steps[len(e.steps)-1]
			last.prints, last.later = append(last.prints, m[2]), last.later || m[1] != ""
			continue
		}
		e.steps = append(e.steps, step{command: text})
	}
	return all, nil
}

func split(names string) []string {
	if names == "" {
		return nil
	}
	return strings.Split(names, " and ")
}

// reader is someone who types what the page says.
type reader struct {
	machines map[string]*machine
	words    map[string]string // what commands have printed, by the page's word for it
}

// fill replaces the page's words in a command by what commands have printed.
func (r *reader) fill(command string) (string, error) {
	var err error
	filled := placeholder.ReplaceAllStringFunc(command, func(word string) string {
		if r.words[word] == "" {
			err = fmt.Errorf("no command before has printed %s", word)
		}
		return r.words[word]
	})
	return filled, err
}

// compare looks for a line of what a command has printed, and keeps the words in it.
func (r *reader) compare(printed, want string) error {
	var words []string
	var pattern strings.Builder
	for i, field := range strings.Fields(want) {
		if i > 0 {
			pattern.WriteString(`\s+`)
		}
		if placeholder.FindString(field) == field {
			words = append(words, field)
			pattern.WriteString(`(\S+)`)
			continue
		}
		pattern.WriteString(regexp.QuoteMeta(field))
	}
	wanted := regexp.MustCompile(pattern.String())
	for line := range strings.Lines(printed) {
		if m := wanted.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			for i, word := range words {
				r.words[word] = m[i+1]
			}
			return nil
		}
	}
	return fmt.Errorf("no line is %q", want)
}

func (r *reader) do(t *testing.T, e example) {
	t.Helper()
	for _, name := range e.gone {
		r.machines[name].kill()
	}
	for _, name := range e.on {
		m := r.machines[name]
		if m == nil {
			t.Fatalf("docs/cluster.md:%d: the page has no machine %s", e.line, name)
		}
		for _, s := range e.steps {
			command, err := r.fill(s.command)
			if err != nil {
				t.Fatalf("docs/cluster.md:%d: %s: %v", e.line, s.command, err)
			}
			began := time.Now()
			err = r.try(t, m, command, s, len(e.gone) > 0)
			if s.later {
				for err != nil && time.Since(began) < time.Minute {
					err = r.try(t, m, command, s, len(e.gone) > 0)
				}
			}
			if err != nil {
				t.Fatalf("docs/cluster.md:%d: on %s: %s: %v\n%s", e.line, name, command, err, m.Logs())
			}
		}
	}
}

// try types a command, and compares what it prints. Where a machine is gone, status exits with an
// error, and the page says what it prints. No other command may.
func (r *reader) try(t *testing.T, m *machine, command string, s step, gone bool) error {
	t.Helper()
	began := time.Now()
	printed, said, err := m.shell(command)
	t.Logf("%s$ %s (%s)\n%s%s", m.Name, command, time.Since(began).Round(10*time.Millisecond), printed, said)
	if err != nil && !(gone && len(s.prints) > 0 && isStatus(command) && exited(err)) {
		return err
	}
	for _, want := range s.prints {
		if err := r.compare(printed, want); err != nil {
			return err
		}
	}
	return nil
}

func isStatus(command string) bool {
	return strings.TrimPrefix(command, "sudo ") == "coracle status"
}

// exited is whether a command ended by itself, with an error.
func exited(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}

// shell runs a line as a user of the machine types it. The user does not wait for longer than
// patience.
func (m *machine) shell(line string) (printed, said string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(m.holder), "--net", "--mount", "--uts", "--", "sh", "-c", line)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // what the shell runs ends with it
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=/root", "PATH=" + filepath.Join(m.dir, "bin") + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err = cmd.Run(); ctx.Err() != nil {
		err = fmt.Errorf("it takes longer than %s: %w", patience, err)
	}
	return out.String(), errs.String(), err
}

// separate makes the machine one where Coracle is installed and was never used: its directories are
// its own, and its programs are found. Its configuration file has what machines that share a kernel
// need.
func (m *machine) separate(t *testing.T) {
	t.Helper()
	programs := filepath.Join(m.dir, "bin")
	for _, dir := range []string{programs, m.Root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(bin("coracle"), filepath.Join(programs, "coracle")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(programs, "sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("cgroup-root: /coracle-page-%s-%s\neviction-hard: memory.available<0%%\ntimeout: %s\n", filepath.Base(m.dir), m.Name, patience)
	if err := os.WriteFile(filepath.Join(m.dir, "cluster.yaml"), []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	// What is written below these directories is on a file system that overlay's roots can be on.
	script := `set -e
cd "$0"
for dir in etc run var; do
	mkdir over-$dir work-$dir
	mount -t overlay -o lowerdir=/$dir,upperdir=over-$dir,workdir=work-$dir machine /$dir
done
rm -rf /etc/cni /etc/coracle /etc/coracled /run/coracle /run/coracled /var/lib/coracle /var/lib/coracled /var/log/pods
mkdir -p /etc/coracle /run/coracle /var/lib/coracle
mount --bind root /var/lib/coracle
mount -t tmpfs -o mode=0755 tmpfs /run/coracle
cp cluster.yaml /etc/coracle/
`
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(m.holder), "--net", "--mount", "--", "sh", "-c", script, m.dir)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", m.Name, err, said)
	}
	m.network(t, func(h *netlink.Handle) error {
		l, err := h.LinkByName("lan0")
		if err != nil {
			return err
		}
		gateway := must(netlink.ParseAddr(strings.TrimRight(m.ip, "0123456789") + "254/24")).IP
		return h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway})
	})
}

// A reader of docs/cluster.md types all of its examples, and sees what it says.
func TestClusterPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := examplesOf(string(page))
	if err != nil {
		t.Fatalf("docs/cluster.md: %v", err)
	}
	r := &reader{machines: map[string]*machine{}, words: map[string]string{}}
	for _, m := range switched(t, "10.0.0.", "boat", "barge", "skiff") {
		m.separate(t)
		r.machines[m.Name] = m
		t.Cleanup(func() {
			if _, said, err := m.shell("coracle down"); err != nil {
				t.Errorf("%s: down: %v\n%s", m.Name, err, said)
			}
			m.kill() // no mount is used any more
		})
	}
	began, available := time.Now(), time.Duration(0)
	for _, e := range examples {
		if len(e.gone) > 0 && available == 0 { // the cluster was complete before the first machine went
			available = time.Since(began)
		}
		r.do(t, e)
	}
	t.Logf("from one machine to three control-plane nodes: %s of commands", available.Round(time.Second))
	if available == 0 || available > tenMinutes {
		t.Errorf("three control-plane nodes took %s, more than %s (0: the page never has a machine gone)", available, tenMinutes)
	}
}

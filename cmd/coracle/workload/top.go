package workload

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/console"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	"github.com/coracle-project/coracle/cmd/coracle/usage"
)

// topFlags are those of `coracle top`.
type topFlags struct {
	chosen  selection
	pods    bool
	updates int
}

func (w *workload) topCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "show what containers use, refreshed each second",
		Long: `Show what the running containers use, the largest users first, refreshed each second.

Keys: c sorts by cores, m by memory, n by name; p switches between containers and pods; q quits.
If standard output is not a terminal, one table after the other is printed. If the machine has
several nodes, all are shown.`,
		Example: `  coracle top
  coracle top -p -n kube-system
  coracle top --updates 60 > minute.txt`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			cmd.SetContext(ctx)
			soon := &workload{daemon: w.daemon, machine: w.machine, patience: topLimit}
			r := &usageReader{workload: soon, cmd: cmd, meters: map[string]*usage.Meter{}}
			err := f.show(ctx, r.read, &topView{pods: f.pods, by: byCPU}, cmd.OutOrStdout())
			if ctx.Err() != nil {
				return nil // that is how this command ends
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&f.pods, "pods", "p", false, "begin with pods instead of containers")
	cmd.Flags().IntVar(&f.updates, "updates", 0, "end after so many; 0: go on until interrupted")
	f.chosen.define(w, cmd)
	return cmd
}

// topLimit is how long one of several nodes may take to answer: the others are shown without it.
const topLimit = 2 * time.Second

// usageReader reads again and again what is used on the nodes that this machine has.
type usageReader struct {
	*workload
	cmd *cobra.Command

	mu     sync.Mutex
	meters map[string]*usage.Meter // by node
}

func (r *usageReader) meter(node string) *usage.Meter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.meters[node] == nil {
		r.meters[node] = &usage.Meter{}
	}
	return r.meters[node]
}

func (r *usageReader) read() ([]usage.Usage, error) {
	return r.usageOfAll(r.cmd, func(ctx context.Context, node string, c runtimeapi.RuntimeServiceClient) ([]usage.Usage, error) {
		return r.meter(node).Read(ctx, c)
	})
}

// show draws into our terminal if we have one on both ends, else prints.
func (f *topFlags) show(ctx context.Context, read func() ([]usage.Usage, error), v *topView, out io.Writer) error {
	terminal, err := console.ConsoleFromFile(os.Stdin)
	if file, ok := out.(*os.File); err != nil || !ok || !output.IsTerminal(file) {
		return f.loop(ctx, read, nil, v, func(all []usage.Usage) error {
			_, err := fmt.Fprintf(out, "%s\n\n", v.text(all))
			return err
		})
	}
	if err := terminal.SetRaw(); err != nil {
		return err
	}
	defer func() { _ = terminal.Reset() }()
	// The alternate screen, without a cursor; and back.
	_, _ = io.WriteString(out, "\x1b[?1049h\x1b[?25l")
	defer func() { _, _ = io.WriteString(out, "\x1b[?25h\x1b[?1049l") }()
	keys := make(chan byte)
	go readKeys(ctx, os.Stdin, keys)
	return f.loop(ctx, read, keys, v, func(all []usage.Usage) error {
		size, err := terminal.Size()
		if err != nil {
			return err
		}
		if size.Width == 0 || size.Height == 0 { // a terminal that was not told, as over some serial lines
			size = console.WinSize{Width: 80, Height: 24}
		}
		_, err = io.WriteString(out, v.screen(all, int(size.Width), int(size.Height)))
		return err
	})
}

// readKeys ends with the process at the latest: a read of a terminal cannot be ended otherwise.
func readKeys(ctx context.Context, in io.Reader, keys chan<- byte) {
	defer close(keys)
	var key [1]byte
	for {
		if _, err := in.Read(key[:]); err != nil {
			return
		}
		select {
		case keys <- key[0]:
		case <-ctx.Done():
			return
		}
	}
}

// loop reads a second after each answer, as the daemon looks once a second, and draws; after a key,
// too.
func (f *topFlags) loop(ctx context.Context, read func() ([]usage.Usage, error), keys <-chan byte, v *topView,
	draw func([]usage.Usage) error,
) error {
	tick := time.NewTicker(between)
	defer tick.Stop()
	for n := 1; ; n++ {
		all, missing := read()
		if missing != nil && all == nil { // no node answers
			return missing
		}
		v.missing = missing
		tick.Reset(between)
		all = slices.DeleteFunc(all, func(u usage.Usage) bool { return !f.chosen.matchesUsage(&u) })
		if err := draw(all); err != nil || n == f.updates {
			return err
		}
		for next := false; !next; {
			select {
			case <-tick.C:
				next = true
			case key, ok := <-keys:
				if !ok || !v.press(key) {
					return nil
				}
				if err := draw(all); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

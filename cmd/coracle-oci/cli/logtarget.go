package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// logTarget is where warnings and errors go: to --log if given, else to standard
// error. The last error of --log is how callers such as containerd learn why a
// command failed, so its JSON has runc's field names and lower-case levels.
type logTarget struct {
	slog *slog.Logger
	file *os.File // nil without --log
}

func openLog(path, format string, debug bool) (*logTarget, error) {
	if format != "text" && format != "json" {
		return nil, fmt.Errorf("--log-format %q is unknown, use text or json", format)
	}
	opts := &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: lowerLevel}
	if debug {
		opts.Level = slog.LevelDebug
	}
	t := &logTarget{}
	var w io.Writer = os.Stderr
	if path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		t.file, w = f, f
	}
	if format == "json" {
		t.slog = slog.New(slog.NewJSONHandler(w, opts))
	} else {
		t.slog = slog.New(slog.NewTextHandler(w, opts))
	}
	return t, nil
}

func lowerLevel(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.LevelKey {
		a.Value = slog.StringValue(strings.ToLower(a.Value.String()))
	}
	return a
}

// fatal reports the error that ends the program, to both places. t is nil if the
// flags were wrong.
func (t *logTarget) fatal(stderr io.Writer, err error) {
	if t != nil && t.file != nil {
		t.slog.Error(err.Error())
	}
	fmt.Fprintf(stderr, "coracle-oci: %v\n", err)
}

func (t *logTarget) close() {
	if t != nil && t.file != nil {
		_ = t.file.Close()
	}
}

package nri

import (
	"context"
	"fmt"
	"log/slog"
)

// logger is the library's log.
type logger struct{ *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}

// Infof logs on the level of details: what the library counts as news (each connection, each
// configuration) is none for operators.
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelWarn, format, args)
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelError, format, args)
}

func (l logger) say(ctx context.Context, level slog.Level, format string, args []any) {
	if l.Enabled(ctx, level) {
		l.Log(ctx, level, "nri: "+fmt.Sprintf(format, args...))
	}
}

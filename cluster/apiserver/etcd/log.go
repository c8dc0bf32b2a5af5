package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"

	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// journal passes on what one server logs: warnings and worse, while it runs. What it says while
// it starts and stops is either no news (it warns of its defaults, and of its listeners when they
// are closed) or ends the start, and is then the start's error.
type journal struct {
	log *slog.Logger
	// started says that the server has served, running that it has not been told to stop since.
	started, running atomic.Bool
	// removed says that another member has told that this one was removed.
	removed atomic.Bool
	// died gets the error of an entry that would have ended the process, or panicked, before the
	// server served.
	died chan error
}

func newJournal(log *slog.Logger) *journal { return &journal{log: log, died: make(chan error, 1)} }

func (j *journal) logger() *zap.Logger {
	return zap.New(slogCore{journal: j}, zap.WithFatalHook(j), zap.WithPanicHook(j))
}

// OnWrite implements zapcore.CheckWriteHook for entries that end the process.
//
// etcd opens its files in goroutines of its own, where no one could recover a panic. While etcd
// starts, such a goroutine ends here, and the caller of the start gets the error. Later the
// goroutine would leave locks behind that others wait for, so the process ends.
func (j *journal) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := withCause(entry.Message, fields)
	if j.started.Load() {
		panic(fmt.Sprintf("etcd: %v", err))
	}
	select {
	case j.died <- err:
	default:
	}
	runtime.Goexit()
}

// withCause returns message as an error that wraps the one among fields, if there is one.
func withCause(message string, fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			return fmt.Errorf("%s: %w", message, err)
		}
	}
	return errors.New(message)
}

// slogCore is a zapcore.Core over the journal's logger.
type slogCore struct {
	*journal
	with []zapcore.Field
}

func (c slogCore) Enabled(level zapcore.Level) bool {
	// Entries that end the process need a core that takes them, for the hook to be called.
	return level >= zapcore.WarnLevel
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.journal, append(c.with[:len(c.with):len(c.with)], fields...)}
}

func (c slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Level > zapcore.ErrorLevel {
		return nil // the hook reports it
	}
	if entry.Message == toldRemoved {
		c.removed.Store(true)
	}
	if !c.running.Load() {
		return nil
	}
	if errors.Is(withCause("", fields), etcderrors.ErrNoSpace) {
		return nil // each write that is refused; that the store is full is told once
	}
	encoder := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.with[:len(c.with):len(c.with)], fields...) {
		f.AddTo(encoder)
	}
	attributes := make([]slog.Attr, 0, len(encoder.Fields))
	for key, value := range encoder.Fields {
		attributes = append(attributes, slog.Any(key, value))
	}
	level := slog.LevelWarn
	if entry.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	c.log.LogAttrs(context.Background(), level, "etcd: "+entry.Message, attributes...)
	return nil
}

func (slogCore) Sync() error { return nil }

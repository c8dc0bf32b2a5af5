package lc

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/sirupsen/logrus"
)

// bridgeLogs sends what libcontainer logs (through logrus's global logger) to
// log. The first engine of a process decides.
func bridgeLogs(log *slog.Logger) {
	bridgeOnce.Do(func() {
		logrus.SetOutput(io.Discard)
		if log.Enabled(context.Background(), slog.LevelDebug) {
			logrus.SetLevel(logrus.DebugLevel)
		}
		logrus.AddHook(logHook{log})
	})
}

var bridgeOnce sync.Once

type logHook struct{ log *slog.Logger }

func (logHook) Levels() []logrus.Level {
	return []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel, logrus.InfoLevel, logrus.DebugLevel}
}

func (h logHook) Fire(e *logrus.Entry) error {
	level := slog.LevelInfo
	switch {
	case e.Level <= logrus.ErrorLevel:
		level = slog.LevelError
	case e.Level == logrus.WarnLevel:
		level = slog.LevelWarn
	case e.Level >= logrus.DebugLevel:
		level = slog.LevelDebug
	}
	attrs := make([]any, 0, 2+2*len(e.Data))
	attrs = append(attrs, "from", "libcontainer")
	for k, v := range e.Data {
		attrs = append(attrs, k, v)
	}
	h.log.Log(context.Background(), level, e.Message, attrs...)
	return nil
}

package state

import (
	"errors"
	"log/slog"

	"github.com/coracle-project/coracle/pod/table"
)

// LogUnrecorded logs that something which has happened could not be written down.
func LogUnrecorded(log *slog.Logger, id string, err error) {
	if err != nil && !errors.Is(err, table.ErrGone) {
		log.Error("record not written, a restart would ask the shim again", "id", id, "err", err)
	}
}

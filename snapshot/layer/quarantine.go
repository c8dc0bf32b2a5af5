package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/trash"
)

// quarantineTime is how long damaged layers are kept.
const quarantineTime = 7 * 24 * time.Hour

func (s *Store) quarantineDir() string { return filepath.Join(s.root, "quarantine") }

// Quarantine takes a damaged layer out of use: no snapshot can be prepared from it any
// more, and it can be committed again. Containers that run from it go on, since their mounts
// hold what they have. Its files are kept while there is a snapshot of the layer, and for
// an operator who wants to know what happened to them: until the layer is committed again, but not
// beyond a week. What has to stay then goes with a later commit or Start. A layer that is
// not there is fine.
func (s *Store) Quarantine(diffID digest.Digest) error {
	if err := Check(diffID); err != nil {
		return err
	}
	s.renames.Lock()
	defer s.renames.Unlock()
	s.mu.Lock()
	l := s.layers[diffID]
	delete(s.layers, diffID)
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	if l.lazy != "" {
		return s.dropLazy(diffID)
	}
	if err := s.driver.Free(s.layerDir(diffID)); err != nil {
		s.log.Warn("a quarantined layer stays mounted", "layer", diffID.String(), "err", err)
	}
	if err := s.setAside(diffID); err != nil {
		s.mu.Lock()
		s.layers[diffID] = l
		freed := l.wanted && s.users[diffID] == 0 // its last user has ended meanwhile
		l.wanted = l.wanted && !freed
		s.mu.Unlock()
		if freed {
			s.freed()
		}
		return err
	}
	return nil
}

// setAside moves a layer's directory into quarantine, where its week starts. None there is fine.
func (s *Store) setAside(diffID digest.Digest) error {
	dir, to := s.layerDir(diffID), filepath.Join(s.quarantineDir(), diffID.Encoded()+"."+trash.NewName())
	// A rename leaves the time as it was. If it cannot be set, the week has begun already.
	now := unix.NsecToTimespec(time.Now().UnixNano())
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW)
	if err := os.Rename(dir, to); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("quarantine layer %s: %w", diffID, err)
	}
	s.log.Warn("layer quarantined: it is damaged", "layer", diffID.String(), "moved", to)
	return nil
}

// endQuarantine deletes the damaged copies of a layer that is whole again.
func (s *Store) endQuarantine(diffID digest.Digest) {
	err := s.eachQuarantined(func(d digest.Digest, _ time.Time) bool { return d == diffID })
	if err != nil {
		s.log.Warn("cannot delete a quarantined layer", "layer", diffID.String(), "err", err)
	}
}

// dropOldQuarantine deletes damaged layers that are whole again, or that no one has asked
// after for long.
func (s *Store) dropOldQuarantine() error {
	return s.eachQuarantined(func(d digest.Digest, since time.Time) bool {
		return s.HasLayer(d) || time.Since(since) > quarantineTime
	})
}

// eachQuarantined deletes the damaged layers that drop says, but none that a snapshot may
// have been made of: a mounted overlay reads its layers' files wherever they are.
func (s *Store) eachQuarantined(drop func(d digest.Digest, since time.Time) bool) error {
	entries, err := os.ReadDir(s.quarantineDir())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // deleted meanwhile
		}
		hex, _, _ := strings.Cut(e.Name(), ".")
		d := digest.NewDigestFromEncoded(digest.SHA256, hex)
		if s.mayBeUsed(d) || !drop(d, info.ModTime()) {
			continue
		}
		errs = append(errs, s.trash.Discard(filepath.Join(s.quarantineDir(), e.Name())))
	}
	return errors.Join(errs...)
}

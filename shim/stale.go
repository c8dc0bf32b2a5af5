package shim

import "strings"

// dropStale drops what the keeper holds of containers and execs that are gone. A keeper that hung
// while they were removed, and then went on, did not drop it; nor did a shim that died meanwhile.
func (s *Service) dropStale() {
	k := s.hold.keeper()
	if k == nil {
		return
	}
	for _, prefix := range []string{"c/", "x/"} {
		keys, err := k.List(prefix)
		if err != nil {
			return // watch comes back with the next keeper
		}
		for _, key := range keys {
			id, exec, isExec := strings.Cut(key[len(prefix):], "/")
			if c := s.container(id); c == nil {
				s.dropUnknown(id)
			} else if isExec {
				c.dropUnknownExec(exec)
			}
		}
	}
}

// container is nil if there is none, or if it is not managed.
func (s *Service) container(id string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

// dropUnknown drops what is held of a container that does not exist. None can be created under its
// name meanwhile.
func (s *Service) dropUnknown(id string) {
	if s.reserve(id) != nil {
		return // it exists
	}
	s.log.Warn("keeper held files of a container that is gone", "container", id)
	s.dropHeld(id)
	s.forget(id)
}

// dropUnknownExec drops what is held of an exec that does not exist. One that is added meanwhile
// has its files held afterwards.
func (c *container) dropUnknownExec(id string) {
	c.holding.Lock()
	defer c.holding.Unlock()
	if _, err := c.exec(id); err != nil {
		c.log.Warn("keeper held files of an exec that is gone", "exec", id)
		c.s.hold.drop((&execution{c: c, id: id}).key())
	}
}

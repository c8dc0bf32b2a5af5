package scheduler

// Preparing returns for how many pods PreBind plugins work.
func (s *Scheduler) Preparing() int {
	s.preparing.mu.Lock()
	defer s.preparing.mu.Unlock()
	return len(s.preparing.pods)
}

// PodDeleted has an informer tell of a deletion.
func (s *Scheduler) PodDeleted(obj any) { s.podDeleted(obj) }

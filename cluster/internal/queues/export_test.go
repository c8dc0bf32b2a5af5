package queues

// Nothing is the provider that does nothing.
var Nothing = nothing

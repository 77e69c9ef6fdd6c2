package console

import "time"

// Masters on a busy machine may take longer to answer than a person waits.
func init() { patience, pagePatience = time.Minute, time.Minute }

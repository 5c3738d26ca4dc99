# Vectors and a data frame of MIB mebibytes: vectors.R MIB
count <- as.integer(commandArgs(trailingOnly = TRUE)[1]) * 1048576 / 8 / 20
set.seed(1)
frame <- data.frame(x = runif(count), group = sample(100L, count, replace = TRUE))
frame$y <- 3 * frame$x + rnorm(count)
sorted <- frame[order(frame$y), ]
cat(sprintf("%.17g\n", c(sum(sorted$y[seq(1, count, 1000)]), tapply(sorted$x, sorted$group, mean),
                         coef(lm(y ~ x, data = frame)))), sep = "")

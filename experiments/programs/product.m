% A matrix of MIB mebibytes, times a vector, again and again: product.m MIB
side = floor(sqrt(str2double(argv(){end}) * 1048576 / 8));
rand("twister", 1);
matrix = rand(side, side);
vector = ones(side, 1);
for i = 1:5
  vector = matrix * vector;
  vector = vector / norm(vector);
end
printf("%.17g\n", sum(vector), sum(sum(matrix)), vector(1:10));
